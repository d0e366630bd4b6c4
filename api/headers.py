"""Request headers that say how a job is to be taken: Prefer, Cancel-After, Idempotency-Key, and conditional reads."""

import hashlib
import json
import re
from typing import Any

from flask import Request, request

from app.errors import RefusedInput

#: Longest wait that `Prefer` may ask for, seconds.
MOST_WAIT_S = 60
#: Bounds of a deadline, seconds.
LEAST_DEADLINE_S, MOST_DEADLINE_S = 5, 604_800
MOST_KEY_CHARS = 255

_WAIT = re.compile(r'wait\s*=\s*("?)([0-9]{1,9})\1', re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s?)?", re.ASCII)


def preferred_wait() -> tuple[int, str | None]:
    """Seconds to wait for the end, and what `Preference-Applied` says. Unknown preferences are ignored (RFC 7240).

    Beside a wait `respond-async` says what happens anyway when the time is up, in whatever order they come.
    """
    # WSGI joins repeated headers with commas.
    parts = request.environ.get("HTTP_PREFER", "").split(",")
    preferences = [part.partition(";")[0].strip().lower() for part in parts]
    applied = "respond-async" if "respond-async" in preferences else None
    for preference in preferences:
        if match := _WAIT.fullmatch(preference):
            seconds = min(int(match[2]), MOST_WAIT_S)
            return seconds, f"wait={seconds}" if seconds else applied
    return 0, applied


def cancel_after_ms() -> int | None:
    """`Cancel-After`: seconds, or hours, minutes and seconds as in 1h30m45s, counted from the creation of the job."""
    text = request.headers.get("Cancel-After")
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise RefusedInput("Cancel-After", 'must be seconds or a duration such as "90s", "5m" or "1h30m45s"')
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if not LEAST_DEADLINE_S <= total <= MOST_DEADLINE_S:
        raise RefusedInput("Cancel-After", f"must be {LEAST_DEADLINE_S} to {MOST_DEADLINE_S} seconds")
    return total * 1000


def idempotency_key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= MOST_KEY_CHARS or not all("\x20" <= character <= "\x7e" for character in key):
        raise RefusedInput("Idempotency-Key", f"must be 1 to {MOST_KEY_CHARS} printable ASCII characters")
    return key


def fingerprint(body: Any) -> str:  # noqa: ANN401 - JSON
    """SHA-256 of what a request asks for: its path, its JSON whatever the order of keys, its files, its deadline."""
    found = hashlib.sha256(f"{request.path}\0{request.headers.get('Cancel-After', '')}\0".encode())
    found.update(json.dumps(body, sort_keys=True).encode())
    for name, file in _files(request):
        found.update(name.encode("utf-8", "replace") + b"\0" + file)
    return found.hexdigest()


def _files(incoming: Request) -> list[tuple[str, bytes]]:
    found = []
    for name, file in sorted(incoming.files.items(multi=True), key=lambda pair: pair[0]):
        file.seek(0)
        found.append((name, hashlib.sha256(file.read()).digest()))
        file.seek(0)
    return found


def sequence_of(text: str | None, field: str) -> int:
    """The last event that a reader has seen; 0 without one."""
    if text is None or text == "":
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise RefusedInput(field, "must be the sequence of an event of this job")
    return int(text)
