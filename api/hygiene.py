"""What every answer gets, and what is logged of every request: no prompt, no query, no body, no credential."""

import re
import secrets
import time

import structlog
from flask import Flask, Response, g, request

from app.settings import Settings

log = structlog.get_logger("access")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: The page to try the API needs its own scripts and styles.
_DOCS_POLICY = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
_EXPOSED = "ETag, Idempotency-Replayed, Location, Preference-Applied, Retry-After, X-Request-ID"
_ALLOWED = "Authorization, Cancel-After, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Prefer, X-Request-ID"


def register(app: Flask, settings: Settings) -> None:
    """Request ids, security headers, CORS for the operator's origins, and one log line a request."""

    @app.before_request
    def begin() -> Response | None:
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        g.started = time.monotonic()
        preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        return Response(status=204) if preflight and _origin(settings) else None

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-ID"] = g.request_id
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.path.startswith("/docs"):
            response.headers["Content-Security-Policy"] = _DOCS_POLICY
        _allow_origin(response, settings)
        _log(response)
        return response


def _origin(settings: Settings) -> str | None:
    """The caller's origin when its pages may call; None without CORS."""
    origin = request.headers.get("Origin")
    return origin if origin and settings.origins & {origin, "*"} else None


def _allow_origin(response: Response, settings: Settings) -> None:
    if not settings.origins:
        return
    response.headers.add("Vary", "Origin")
    origin = _origin(settings)
    if origin is None:
        return
    response.headers["Access-Control-Allow-Origin"] = "*" if "*" in settings.origins else origin
    response.headers["Access-Control-Expose-Headers"] = _EXPOSED
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
        response.headers["Access-Control-Allow-Headers"] = _ALLOWED
        response.headers["Access-Control-Max-Age"] = "600"


def _log(response: Response) -> None:
    log.info(
        "request",
        request_id=g.request_id,
        method=request.method,
        # Of an unknown path nothing is known, so nothing of it is written.
        path=request.path[:200] if request.url_rule is not None else "(unknown)",
        status=response.status_code,
        # Until the answer begins; a stream goes on.
        ms=round((time.monotonic() - g.started) * 1000, 1),
        bytes=None if response.is_streamed else response.calculate_content_length(),
        remote=request.remote_addr,
    )
