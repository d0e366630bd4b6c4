"""The gunicorn worker: keeps idle connections for long, answers as a problem what its parser refuses, sends at once."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gunicorn.http import errors
from gunicorn.workers.ggevent import GeventWorker

from api.stopping import STOPPING

#: Error of the parser -> status, code, title and a sentence that repeats nothing of the request.
_ANSWERS: tuple[tuple[type[Exception], int, str, str, str], ...] = (
    (errors.LimitRequestLine, 414, "uri_too_long", "URI Too Long", "the request line is too long"),
    (errors.LimitRequestHeaders, 431, "headers_too_large", "Request Header Fields Too Large", "a header is too large"),
    (errors.ExpectationFailed, 417, "expectation_failed", "Expectation Failed", "this expectation is not met"),
    (errors.UnsupportedTransferCoding, 501, "not_implemented", "Not Implemented", "this transfer coding is not known"),
    (errors.ParseException, 400, "bad_request", "Bad Request", "the request is not valid HTTP"),
)
#: What is read of a refused request before it is closed.
_DRAIN_S, _DRAIN_READS = 0.5, 16
#: From this share of the connections on, the one that has been idle longest makes room for a new one.
_CROWDED = 0.9
_LENGTH = b"\r\nContent-Length: "


class Worker(GeventWorker):  # type: ignore[misc]
    """Idle connections neither hold up a stop nor keep others out, however long they may stay."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - gunicorn's own
        super().__init__(*args, **kwargs)
        self._open: dict[object, Any] = {}
        #: The longest idle first.
        self._idle: dict[object, Any] = {}

    def init_process(self) -> None:
        # gunicorn finds each setting by __getattr__, some twenty times a request: a fiftieth of a submit.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        super().init_process()

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:  # noqa: ANN401 - gunicorn's own
        joining = _Joining(sock)
        super().handle_request(listener_name, req, joining, addr)
        joining.flush()

    def handle(self, listener: Any, client: Any, addr: Any) -> None:  # noqa: ANN401 - gunicorn's own
        here = gevent.getcurrent()
        self._open[here] = client
        try:
            super().handle(listener, client, addr)
        finally:
            del self._open[here]

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Around the wait for a connection's next request."""
        if self._idle and len(self._open) > _CROWDED * self.worker_connections:
            _end_input(self._idle.pop(next(iter(self._idle))))
        here = gevent.getcurrent()
        client = self._idle[here] = self._open[here]
        client.settimeout(None)
        try:
            if not self.alive:
                _end_input(client)
            with super().timeout_ctx():
                yield
        finally:
            self._idle.pop(here, None)
            # A body may come slowly, but not stop; gunicorn's other workers would be killed after this time.
            client.settimeout(self.cfg.timeout or None)

    def notify(self) -> None:
        """Called every second, also while a stopping worker waits for its connections to end."""
        super().notify()
        if not self.alive:
            STOPPING.set()
            for client in self._idle.values():
                _end_input(client)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:  # noqa: ANN401 - gunicorn's own
        for kind, status, code, title, detail in _ANSWERS:
            if isinstance(exc, kind):
                self.log.debug("refused %s: %s", status, code)
                _send(client, status, code, title, detail)
                return
        super().handle_error(req, client, addr, exc)


class _Joining:
    """A socket that sends the head of an answer together with its body, where gunicorn sends each by itself."""

    def __init__(self, sock: Any) -> None:  # noqa: ANN401 - gevent's socket
        self._sock = sock
        self._held = b""
        self._begun = False

    def sendall(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            # A large answer may take its time.
            self._sock.settimeout(None)
            if _LENGTH in data:
                # Without a length it is a stream, whose head must not wait for its first event.
                self._held = data
                return
        self._sock.sendall(self._held + data)
        self._held = b""

    def flush(self) -> None:
        """Of an answer without a body."""
        if self._held:
            self._sock.sendall(self._held)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever else a socket does
        return getattr(self._sock, name)


def _end_input(client: Any) -> None:  # noqa: ANN401 - gevent's socket
    """As if the client had hung up, but behind what it has sent already: a request on its way is answered."""
    try:
        client.shutdown(socket.SHUT_RD)
    except OSError:
        # It has hung up.
        return


def _send(client: Any, status: int, code: str, title: str, detail: str) -> None:  # noqa: ANN401 - gevent's socket
    kind = f"/problems/{code.replace('_', '-')}"
    problem = {"type": kind, "title": title, "status": status, "code": code, "detail": detail, "errors": []}
    body = json.dumps(problem)
    head = (
        f"HTTP/1.1 {status} {title}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n\r\n"
    )
    try:
        client.sendall((head + body).encode())
        # Closing on what has not been read would reset the connection, and the answer with it.
        client.shutdown(socket.SHUT_WR)
        client.settimeout(_DRAIN_S)
        for _ in range(_DRAIN_READS):
            if not client.recv(65536):
                return
    except OSError:
        # The client has gone, or is too slow to be waited for.
        return
