"""Connections of a running process: kept while idle, no burden on a stop, and never in the way of others."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import requests

from tests.api.conftest import running
from tests.servers import wait_until

#: gunicorn's own time for an idle connection is 2 s.
_IDLE_S = 2.5
#: More than the process holds.
_CROWD = 1050
#: The service as it is run, but that a body may stop for 2 s and not for 60.
_PATIENCE = [
    "gunicorn",
    "api.application:create()",
    "--worker-class=api.server.Worker",
    "--timeout=2",
    "--keep-alive=75",
]
_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def own(servers, client, tmp_path):
    """A process for one test, which ends it."""
    with running(servers, tmp_path) as found:
        yield found


def _connect(live):
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection, request=_GET):
    """The status and the head of one answer; b"" when the other side has closed."""
    connection.sendall(request)
    found = b""
    while b"\r\n\r\n" not in found:
        more = connection.recv(65536)
        if not more:
            return 0, b""
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
    while left > 0:
        left -= len(connection.recv(65536))
    return int(head.split()[1]), head.lower()


def test_an_idle_connection_is_kept_and_does_not_hold_up_a_stop(own):
    body = b'{"prompt": "x", "size": "32x32"}'
    submit = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    with ExitStack() as stack:
        kept = [stack.enter_context(_connect(own)) for _ in range(20)]
        assert {_ask(connection)[0] for connection in kept} == {200}
        time.sleep(_IDLE_S)
        status, head = _ask(kept[0], submit % (len(body), body))
        assert status == 202, "a POST on an idle connection was lost"
        job = head.split(b"location: ")[1].split(b"\r\n")[0]
        # In flight while the process stops.
        kept[1].sendall(b"GET %b?wait=1 HTTP/1.1\r\nHost: x\r\n\r\n" % job)
        time.sleep(0.2)
        own.child.terminate()
        assert kept[1].recv(65536).startswith(b"HTTP/1.1 200")
        assert all(connection.recv(1) == b"" for connection in kept[2:])
        wait_until(lambda: not own.child.running, what="the end of the process")
        # What gunicorn says when it has waited in vain for connections to end.
        assert "graceful timeout" not in own.log.read_text()


def test_who_waits_while_a_process_stops_is_told_what_there_is(own, store):
    """A call that is cut off is sent again, and its job is made twice."""
    body = {"prompt": "x", "size": "32x32"}
    job = requests.post(f"{own.url}/v1/jobs", json=body, timeout=20)
    url = own.url + job.headers["Location"]
    calls = {
        "wait": lambda: requests.post(f"{own.url}/v1/jobs", json=body, headers={"Prefer": "wait=50"}, timeout=20),
        "poll": lambda: requests.get(f"{url}?wait=25", timeout=20),
        "stream": lambda: requests.get(f"{url}/events", timeout=20),
        "pictures": lambda: requests.post(f"{own.url}/v1/images/generations", json=body, timeout=20),
    }
    with ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(call) for name, call in calls.items()}
        wait_until(lambda: len(store.page("anybody", limit=9).jobs) == 3, what="the jobs")
        time.sleep(0.5)
        own.child.terminate()
        answers = {name: each.result() for name, each in asked.items()}
    assert {name: answer.status_code for name, answer in answers.items()} == {
        "wait": 202,
        "poll": 200,
        "stream": 200,
        "pictures": 503,
    }
    assert answers["wait"].json()["status"] == "queued"
    refusal = answers["pictures"]
    assert (refusal.json()["error"]["code"], "x-should-retry" in refusal.headers) == ("stopping", False)
    canceled = re.search(r"job_[0-9a-f]{32}", refusal.text)[0]
    assert store.get(canceled).status == "canceled", "the next try draws it"
    wait_until(lambda: not own.child.running, what="the end of the process")
    assert "graceful timeout" not in own.log.read_text()


def test_idle_connections_make_room_for_new_ones(live, client):
    with ExitStack() as stack:
        crowd = [stack.enter_context(_connect(live)) for _ in range(_CROWD)]
        assert _ask(crowd[-1])[0] == 200
        with _connect(live) as newcomer:
            assert _ask(newcomer)[0] == 200
            assert _ask(newcomer)[0] == 200, "kept, since others were idle for longer"
        assert crowd[0].recv(1) == b"", "the one that was idle longest was closed"


def test_a_head_is_sent_with_its_body_and_never_waits_for_one(live, client):
    body = b'{"prompt": "x", "size": "32x32"}'
    with _connect(live) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        head, _, answer = connection.recv(65536).partition(b"\r\n\r\n")
        job = json.loads(answer)
        path = f"/v1/jobs/{job['id']}".encode()
        connection.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        tag = re.search(rb"(?i)etag: ([^\r]+)", connection.recv(65536))[1]
        for method, more, status in (
            (b"HEAD", b"", b"200"),
            (b"GET", b"If-None-Match: %b\r\n" % tag, b"304"),
            (b"GET", b"", b"200"),
        ):
            connection.sendall(b"%b %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (method, path, more))
            head, _, answer = connection.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            assert bool(answer) == (status == b"200" and method == b"GET")
        # A stream's head comes before the first event.
        connection.sendall(b"GET %b/events HTTP/1.1\r\nHost: x\r\n\r\n" % path)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_that_stops_is_answered_and_a_slow_one_is_read(servers, client, tmp_path):
    body = b'{"prompt": "x", "size": "32x32"}'
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    form = b"POST /v1/images/edits HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with (
        running(servers, tmp_path, _PATIENCE) as own,
        _connect(own) as stopped,
        _connect(own) as half,
        _connect(own) as slow,
    ):
        stopped.sendall(head % len(body) + body[:9])
        half.sendall(form + b"Content-Length: 99\r\n\r\n--b\r\n")
        slow.sendall(head % len(body))
        for begin in range(0, len(body), 8):
            time.sleep(0.6)
            slow.sendall(body[begin : begin + 8])
        assert slow.recv(65536).startswith(b"HTTP/1.1 202")
        for answer in (stopped.recv(65536), half.recv(65536)):
            assert answer.startswith(b"HTTP/1.1 400")
            assert b"stopped before its end" in answer
