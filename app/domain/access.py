"""API keys as the service sees them: what a key may do, and how much of it."""

from dataclasses import dataclass, fields
from enum import StrEnum


class Scope(StrEnum):
    """What a key may do. No scope contains another."""

    JOBS_WRITE = "jobs:write"  #: submit, cancel, delete, redeliver
    JOBS_READ = "jobs:read"  #: look at the key's own jobs, pictures and events, and at the queue
    ADMIN = "admin"  #: the webhook secret and the workers; no key sees the jobs of another one


#: Scopes of a key that is created without any.
USUAL_SCOPES = (Scope.JOBS_READ, Scope.JOBS_WRITE)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one key may ask for; 0: as much as it likes.

    `requests` and `pixels` (of all images of its jobs) a minute; `images` that have not ended, at a time.
    """

    requests: int = 0
    images: int = 0
    pixels: int = 0


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class LimitChanges:
    """Where a key's limits differ from the service's; None: they don't."""

    requests: int | None = None
    images: int | None = None
    pixels: int | None = None

    def applied_to(self, usual: Limits) -> Limits:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return Limits(**{name: getattr(usual, name) if value is None else value for name, value in own.items()})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. `id` is the owner of its jobs; times are server ms."""

    id: str
    name: str
    scopes: frozenset[Scope]
    limits: LimitChanges
    created_at: int
    revoked_at: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a submit left of its key's limits. `images` that have not ended now; ms until `pixels` are all back."""

    images: int
    pixels_ms: int
