"""How much a key has used within a minute."""

from dataclasses import dataclass

from app import keys
from app.connect import Client, translated
from app.store.scripts import Scripts

#: Limits by time are by the minute, ms. So nobody is ever told to wait for longer.
WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class Taken:
    """Whether it was allowed; ms until the quota is whole again, or, when not allowed, until it would be."""

    allowed: bool
    ms: int


class Quotas:
    """Token buckets on the server, the same for every API process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def take_request(self, owner: str, quota: int) -> Taken:
        """One request of so many a minute."""
        with translated():
            allowed, ms = self._scripts.run("take", keys=[keys.quota(owner, "requests")], args=[quota, WINDOW_MS, 1])
        return Taken(bool(allowed), int(ms))


def left(quota: int, ms: int) -> int:
    """What is left of a minute's quota that will be whole again in so many ms."""
    return max(0, quota * (WINDOW_MS - ms) // WINDOW_MS)
