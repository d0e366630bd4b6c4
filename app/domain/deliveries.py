"""What is known of the delivery of an event, and of the endpoint that it goes to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `status` is None when no answer came. Times are server ms."""

    at: int
    status: int | None
    error: str
    took_ms: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """What has become of one event. `outcome`: pending, retry, paused, delivered or given_up."""

    outcome: str = "pending"
    attempts: int = 0
    tries: int = 0
    forced: bool = False
    error: str = ""
    next_attempt_at: int | None = None
    log: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a receiver has answered lately. Times are server ms."""

    failures: int = 0
    failing_since: int | None = None
    paused_until: int | None = None
    gone_at: int | None = None
