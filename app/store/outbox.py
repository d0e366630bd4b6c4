"""The webhook outbox: events that their job's receiver has not confirmed yet, and when to try next."""

from app import keys
from app.connect import Client, translated
from app.store.scripts import Scripts


class Outbox:
    """Several couriers may take from it; what one takes stays in it until the delivery is settled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def take(self, limit: int, *, hold_ms: int) -> list[tuple[str, int]]:
        """(job id, event sequence) of deliveries that are due; others may take them again after hold_ms."""
        with translated():
            members = self._scripts.run("outbox_take", keys=[keys.OUTBOX], args=[limit, hold_ms])
        pairs = (member.decode().rpartition(":") for member in members)
        return [(job_id, int(sequence)) for job_id, _, sequence in pairs]

    def attempts(self, job_id: str, sequence: int) -> int:
        """Delivery attempts made so far."""
        with translated():
            return int(self._client.hget(keys.delivery(job_id, sequence), "attempts") or 0)

    def settle(
        self, job_id: str, sequence: int, outcome: str, *, retry_ms: int = 0, status: int | None = None, error: str = ""
    ) -> None:
        """Record an attempt: `delivered`, `retry` (again in retry_ms) or `given_up`."""
        with translated():
            self._scripts.run(
                "outbox_settle",
                keys=[keys.OUTBOX, keys.delivery(job_id, sequence), keys.STATS],
                args=[f"{job_id}:{sequence}", outcome, retry_ms, "" if status is None else status, error],
            )

    def secret(self, drawn: str) -> str:
        """The signing secret that all hosts share: the first one ever drawn."""
        with translated():
            self._client.set(keys.WEBHOOK_SECRET, drawn, nx=True)
            secret = self._client.get(keys.WEBHOOK_SECRET)
        return str(secret.decode())
