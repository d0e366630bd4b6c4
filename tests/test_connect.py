import os
import signal
import time

import pytest
from redis.connection import SSLConnection

from app.connect import connect
from app.launcher import embedded
from app.settings import Settings
from tests.servers import wait_until


def test_tls_is_kept():
    assert connect(Settings(redis_url="rediss://127.0.0.1:1/0")).connection_pool.connection_class is SSLConnection


@pytest.fixture
def own(tmp_path):
    """A server that may be killed, and a way to start it again."""
    credentials = embedded.Credentials.load(tmp_path)
    url = embedded.redis_url(credentials)
    child = embedded.valkey(tmp_path, tmp_path, credentials)

    def start():
        child.start()
        wait_until(lambda: embedded.redis_answers(url), what="Redis")

    start()
    yield Settings(redis_url=url), child, start
    child.terminate()
    child.finish(time.monotonic() + 10)


def test_connections_from_before_a_restart_serve_on(own):
    settings, child, start = own
    with connect(settings) as client:
        pool = client.connection_pool
        kept = [pool.get_connection() for _ in range(3)]
        for connection in kept:
            pool.release(connection)
        os.kill(child.pid, signal.SIGKILL)
        child.finish(time.monotonic() + 10)
        start()
        assert [client.echo(str(number)) for number in range(6)] == [str(number).encode() for number in range(6)]
