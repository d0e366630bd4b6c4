"""What every answer gets, and what is logged of every request: no prompt, no query, no body, no credential.

A layer around Flask and not a hook in it: it also sees what fails there, and costs a tenth.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from app.logs import AccessLog
from app.settings import Settings

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./-]{0,200}", re.ASCII)
_COMMON = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
]
_ANSWERS = [*_COMMON, ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")]
#: The page to try the API needs its own scripts and styles.
_DOCS = [
    *_COMMON,
    (
        "Content-Security-Policy",
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; frame-ancestors 'none'",
    ),
]
_EXPOSED = (
    "ETag, Idempotency-Replayed, Location, Preference-Applied, RateLimit, RateLimit-Policy, Retry-After, "
    "WWW-Authenticate, X-Request-ID"
)
_ALLOWED = (
    "Authorization, Cancel-After, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Prefer, X-Request-ID"
)

Wsgi = Callable[..., Iterable[bytes]]
Headers = list[tuple[str, str]]


class Hygiene:
    """Request ids, security headers, CORS for the operator's origins, and one log line a request."""

    def __init__(self, inside: Wsgi, settings: Settings, log: AccessLog) -> None:
        self._inside = inside
        self._origins = settings.origins
        self._log = log

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        started = time.monotonic()
        given = environ.get("HTTP_X_REQUEST_ID", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        path = environ.get("PATH_INFO", "")

        def start(status: str, headers: Headers, exc_info: Any = None) -> Any:  # noqa: ANN401 - WSGI's own
            headers += _DOCS if path.startswith("/docs") else _ANSWERS
            headers.append(("X-Request-ID", request_id))
            if self._origins:
                headers += self._cross_origin(environ)
            self._log.write(
                request_id=request_id,
                method=environ["REQUEST_METHOD"][:20],
                path=path if _PLAIN_PATH.fullmatch(path) else "(odd)",
                status=int(status[:3]),
                # Until the answer begins; a stream goes on.
                ms=round((time.monotonic() - started) * 1000, 1),
                bytes=next((int(value) for name, value in headers if name == "Content-Length"), None),
                remote=environ.get("REMOTE_ADDR"),
            )
            return start_response(status, headers, exc_info)

        if self._origins and self._is_preflight(environ):
            start("204 No Content", [])
            return []
        return self._inside(environ, start)

    def _is_preflight(self, environ: dict[str, Any]) -> bool:
        asks = environ["REQUEST_METHOD"] == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
        return asks and self._may_call(environ.get("HTTP_ORIGIN"))

    def _may_call(self, origin: str | None) -> bool:
        return origin is not None and bool(self._origins & {origin, "*"})

    def _cross_origin(self, environ: dict[str, Any]) -> Headers:
        found = [("Vary", "Origin")]
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and self._may_call(origin):
            found.append(("Access-Control-Allow-Origin", "*" if "*" in self._origins else origin))
            found.append(("Access-Control-Expose-Headers", _EXPOSED))
            if environ["REQUEST_METHOD"] == "OPTIONS":
                found.append(("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"))
                found.append(("Access-Control-Allow-Headers", _ALLOWED))
                found.append(("Access-Control-Max-Age", "600"))
        return found
