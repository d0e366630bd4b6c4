"""The gunicorn worker: what its parser refuses before the application sees it is answered as a problem, too."""

import json
import socket
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.ggevent import GeventWorker

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


class Worker(GeventWorker):  # type: ignore[misc]
    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:  # noqa: ANN401 - gunicorn's own
        for kind, status, code, title, detail in _ANSWERS:
            if isinstance(exc, kind):
                self.log.debug("refused %s: %s", status, code)
                _send(client, status, code, title, detail)
                return
        super().handle_error(req, client, addr, exc)


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
