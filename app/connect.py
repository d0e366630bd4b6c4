"""The Redis client, and the one place where its errors become ours."""

import fcntl
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from app.errors import Unavailable
from app.settings import Settings

#: redis-py types each reply as the union over all protocols and decoders, so that no command could be used unchecked.
Client: TypeAlias = Any

#: Replies that mean "not now": disk full, failover, too few replicas.
_TRANSIENT_REPLIES = (
    "MISCONF",
    "OOM",
    "READONLY",
    "LOADING",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "BUSY",
    "UNKILLABLE",
)


class _Connection(redis.Connection):
    def can_read(self, timeout: float = 0) -> bool:
        """Whether there is something to read; for no time at all, as the pool asks before each command, by one call.

        Under gevent its poll costs a twentieth of a submit. That the server has hung up is then told by the command
        itself, which is tried once more.
        """
        if timeout != 0 or self._sock is None:
            return bool(super().can_read(timeout))
        waiting = fcntl.ioctl(self._sock.fileno(), termios.FIONREAD, b"\0" * 4)
        return waiting != b"\0" * 4


def connect(settings: Settings, *, timeout_s: float = 1.0) -> Client:
    """A client for short commands.

    A broken connection is tried once more, since the pool may hold connections from before a restart; every script of
    ours may run twice without harm. A timeout is not: the caller waits no longer than about timeout_s.
    """
    return redis.Redis.from_url(
        settings.redis_url.get_secret_value(),
        socket_timeout=timeout_s,
        socket_connect_timeout=1.0,
        socket_keepalive=True,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.05), 1, supported_errors=(ConnectionError,)),
        client_name="planpaint",
        **(settings.redis_tls or {"connection_class": _Connection}),
    )


@contextmanager
def translated() -> Iterator[None]:
    """Turn an unreachable or refusing server into Unavailable; a wrong command stays a bug."""
    try:
        yield
    except (ConnectionError, TimeoutError, BusyLoadingError, OutOfMemoryError, ReadOnlyError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise Unavailable(f"redis: its certificate is not trusted, see PLANPAINT_REDIS_CA: {error}") from error
        raise Unavailable(f"redis: {error}") from error
    except ResponseError as error:
        if str(error).startswith(_TRANSIENT_REPLIES):
            raise Unavailable(f"redis: {error}") from error
        raise
