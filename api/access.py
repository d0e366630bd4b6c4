"""Lets requests to /v1 in by their API key, and tells its holder what is left of the key's limits.

The fields are those of draft-ietf-httpapi-ratelimit-headers.
"""

import math
from collections.abc import Sequence

from flask import Flask, Response, g, request

from api.gate import ANYONE, Caller
from api.parts import current
from api.problems import problem
from app.domain.access import Limits, Scope, Usage
from app.errors import LimitReached, QueueFull
from app.store.quotas import WINDOW_MS, left

#: Operations that show or change what belongs to all callers.
ADMIN_ENDPOINTS = frozenset({"deliveries.secret", "deliveries.rotate", "operations.workers"})
_READS = ("GET", "HEAD", "OPTIONS")
#: Longest Retry-After, seconds: OpenAI's clients take a longer one for no.
_MOST_WAIT_S = 120
#: While no image has been measured.
_USUAL_WAIT_S = 5


def caller() -> Caller:
    """Who has sent the request at hand."""
    found: Caller = g.caller
    return found


def tell_usage(usage: Usage | None) -> None:
    """Have the answer at hand tell what a submit has left of the key's limits."""
    if usage is None:
        return
    limits = caller().limits
    if limits.images:
        _tell("images", max(0, limits.images - usage.images), None)
    if limits.pixels:
        _tell("pixels", left(limits.pixels, usage.pixels_ms), usage.pixels_ms)


def register(app: Flask) -> None:
    app.before_request(_admit)
    app.after_request(_add_fields)
    app.register_error_handler(LimitReached, _limit_reached)
    app.register_error_handler(QueueFull, _queue_full)


def _admit() -> Response | None:
    """401 without a key that is known, 403 when it may not do this, 429 when it comes too often."""
    if not request.path.startswith("/v1/"):
        return None
    gate = current().gate
    if gate.is_open:
        g.caller = ANYONE
        return None
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        return _challenge(401, "missing_api_key", "Unauthorized", "send an API key as Authorization: Bearer ...", "")
    found = gate.caller(secret.strip())
    if found is None:
        wrong = ', error="invalid_token"'
        return _challenge(401, "invalid_api_key", "Unauthorized", "this API key is unknown or revoked", wrong)
    g.caller = found
    scope = _needed_scope()
    if scope not in found.scopes:
        short = f', error="insufficient_scope", scope="{scope.value}"'
        return _challenge(
            403, "insufficient_scope", "Forbidden", f"this needs a key with the scope {scope.value}", short
        )
    return _count(found)


def _needed_scope() -> Scope:
    if request.endpoint in ADMIN_ENDPOINTS:
        return Scope.ADMIN
    return Scope.JOBS_READ if request.method in _READS else Scope.JOBS_WRITE


def _count(found: Caller) -> Response | None:
    quota = found.limits.requests
    if not quota:
        return None
    taken = current().gate.take_request(found)
    _tell("requests", left(quota, taken.ms) if taken.allowed else 0, taken.ms)
    if taken.allowed:
        return None
    return _too_much("quota_exceeded", f"this key may send {quota} requests a minute", 429, taken.ms)


def _challenge(status: int, code: str, title: str, detail: str, more: str) -> Response:
    response = problem(status, code, title, detail)
    response.headers["WWW-Authenticate"] = f'Bearer realm="planpaint"{more}'
    return response


def _limit_reached(error: LimitReached) -> Response:
    wait_ms = _until_an_image_ends_ms() if error.wait_ms is None else error.wait_ms
    _tell(error.policy, error.left, wait_ms)
    return _too_much("quota_exceeded", str(error), 429, wait_ms)


def _queue_full(error: QueueFull) -> Response:
    return _too_much("queue_full", str(error), 503, _until_an_image_ends_ms())


def _too_much(code: str, detail: str, status: int, wait_ms: float) -> Response:
    title = "Too many requests" if status == 429 else "Service unavailable"
    response = problem(status, code, title, detail)
    response.headers["Retry-After"] = str(min(_MOST_WAIT_S, max(1, math.ceil(wait_ms / 1000))))
    return response


def _until_an_image_ends_ms() -> float:
    load = current().outlooks.load()
    if not (load.dit_ms and load.dit_workers):
        return 1000 * _USUAL_WAIT_S
    return min(1000 * _MOST_WAIT_S, load.dit_ms / load.dit_workers)


# --- fields


def _tell(policy: str, remaining: int, wait_ms: float | None) -> None:
    seconds = "" if wait_ms is None else f";t={math.ceil(wait_ms / 1000)}"
    g.setdefault("rate_limit", {})[policy] = f'"{policy}";r={remaining}{seconds}'


def _policies(limits: Limits) -> Sequence[str]:
    window = f"w={WINDOW_MS // 1000}"
    found = [f'"requests";q={limits.requests};{window}'] if limits.requests else []
    found += [f'"images";q={limits.images};qu="images"'] if limits.images else []
    return found + ([f'"pixels";q={limits.pixels};{window};qu="pixels"'] if limits.pixels else [])


def _add_fields(response: Response) -> Response:
    if told := g.get("rate_limit"):
        response.headers["RateLimit-Policy"] = ", ".join(_policies(caller().limits))
        response.headers["RateLimit"] = ", ".join(told.values())
    return response
