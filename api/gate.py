"""Which API key a request comes with, and whether it may come now."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.domain.access import NO_LIMITS, ApiKey, Limits, Scope
from app.domain.job import ANYBODY
from app.settings import Settings
from app.store.api_keys import ApiKeys, digest_of
from app.store.quotas import Quotas, Taken

#: What is known of a key is believed for so long, seconds: a revoked one is refused after that.
FRESH_S = 2.0
#: Keys that a process remembers, wrong ones included.
_MOST_KNOWN = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has sent a request. `digest`: of the key that came with it; None while the service asks for none."""

    owner: str
    limits: Limits
    scopes: frozenset[Scope]
    digest: str | None = None


ANYONE = Caller(ANYBODY, NO_LIMITS, frozenset(Scope))


class _Recent(Generic[T]):
    """Answers that are believed for FRESH_S."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, T]] = {}

    def get(self, name: str, ask: Callable[[], T]) -> T:
        now = time.monotonic()
        with self._lock:
            found = self._known.get(name)
        if found and now - found[0] < FRESH_S:
            return found[1]
        answer = ask()
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = (now, answer)
        return answer


class Gate:
    """Asks Redis for a key at most every FRESH_S, and counts a key's requests there."""

    def __init__(self, settings: Settings, keys: ApiKeys, quotas: Quotas) -> None:
        self._keys = keys
        self._quotas = quotas
        self._mode = settings.api_keys
        self._needed = settings.needs_keys
        self._usual = Limits(settings.key_requests, settings.key_images, settings.key_pixels)
        self._callers: _Recent[Caller | None] = _Recent()
        self._any: _Recent[bool] = _Recent()

    @property
    def is_open(self) -> bool:
        """Whether a request needs no key: they are switched off, or there are none yet and none are needed."""
        if self._mode == "off":
            return True
        return not (self._needed or self._any.get("", self._keys.any))

    def caller(self, secret: str) -> Caller | None:
        """Who has this key; None for one that is unknown or revoked."""
        return self._caller(digest_of(secret))

    def still_knows(self, caller: Caller) -> bool:
        """Whether the caller's key has not been revoked."""
        return caller.digest is None or self._caller(caller.digest) is not None

    def take_request(self, caller: Caller) -> Taken:
        return self._quotas.take_request(caller.owner, caller.limits.requests)

    def _caller(self, digest: str) -> Caller | None:
        return self._callers.get(digest, lambda: self._asked(digest))

    def _asked(self, digest: str) -> Caller | None:
        key: ApiKey | None = self._keys.find(digest)
        if key is None or key.revoked_at is not None:
            return None
        return Caller(key.id, key.limits.applied_to(self._usual), key.scopes, digest)
