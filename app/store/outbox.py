"""The webhook outbox: events that their job's receiver has not confirmed yet, and when to try next."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import keys
from app.connect import Client, translated
from app.domain.deliveries import Attempt, Delivery, Endpoint
from app.domain.messages import Event
from app.errors import NotFound
from app.store.scripts import Scripts

#: An endpoint that nothing was sent to is forgotten after this long, ms.
_ENDPOINT_KNOWN_MS = 7 * 86_400_000
#: A test event and what became of it, ms.
_TEST_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Patience:
    """When an endpoint that keeps failing is paused, and how long a pause is, ms."""

    pause_after_ms: int = 21_600_000
    pause_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where an announcement goes: an endpoint is an URL of one owner. `since`: creation of its job or test, ms."""

    owner: str
    url: str
    since: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one attempt came to. `took_ms` is None when none was made."""

    outcome: str
    retry_ms: int = 0
    status: int | None = None
    error: str = ""
    took_ms: int | None = None


class Outbox:
    """Several couriers may take from it; what one takes stays in it until the delivery is settled."""

    def __init__(self, client: Client, patience: Patience | None = None) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._patience = patience or Patience()

    def take(self, limit: int, *, hold_ms: int) -> list[tuple[str, int]]:
        """(job id, event sequence) of deliveries that are due; others may take them again after hold_ms."""
        with translated():
            members = self._scripts.run("outbox_take", keys=[keys.OUTBOX], args=[limit, hold_ms])
        pairs = (member.decode().rpartition(":") for member in members)
        return [(job_id, int(sequence)) for job_id, _, sequence in pairs]

    def postpone(self, job_id: str, sequence: int, ms: int) -> None:
        """Put back what was taken, for a moment, without an attempt."""
        with translated():
            seconds, microseconds = self._client.time()
            now = seconds * 1000 + microseconds // 1000
            self._client.zadd(keys.OUTBOX, {f"{job_id}:{sequence}": now + ms}, xx=True)

    def begin(self, job_id: str, sequence: int, receiver: Receiver) -> str:
        """Whether to try now: "go", "paused" or "gone" (see outbox_begin.lua)."""
        with translated():
            verdict = self._scripts.run(
                "outbox_begin",
                keys=[keys.endpoint(receiver.owner, receiver.url), keys.OUTBOX, keys.delivery(job_id, sequence)],
                args=[f"{job_id}:{sequence}", receiver.since, self._patience.pause_ms],
            )
        return str(verdict.decode())

    def settle(self, job_id: str, sequence: int, settlement: Settlement, receiver: Receiver | None) -> bool:
        """Record an attempt; returns whether it made the endpoint pause. `receiver` is None when there is none left."""
        endpoint = keys.endpoint(receiver.owner, receiver.url) if receiver else keys.endpoint("", "")
        with translated():
            paused = self._scripts.run(
                "outbox_settle",
                keys=[keys.OUTBOX, keys.delivery(job_id, sequence), keys.STATS, _record(job_id), endpoint],
                args=[
                    f"{job_id}:{sequence}",
                    settlement.outcome,
                    settlement.retry_ms,
                    "" if settlement.status is None else settlement.status,
                    settlement.error,
                    "" if settlement.took_ms is None else settlement.took_ms,
                    self._patience.pause_after_ms,
                    self._patience.pause_ms,
                    _ENDPOINT_KNOWN_MS,
                ],
            )
        return bool(paused)

    # --- the delivery log

    def delivery(self, job_id: str, sequence: int) -> Delivery:
        return self.deliveries(job_id, [sequence])[0]

    def deliveries(self, job_id: str, sequences: Sequence[int]) -> list[Delivery]:
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for sequence in sequences:
                pipe.hgetall(keys.delivery(job_id, sequence))
            return [_delivery(record) for record in pipe.execute()]

    def endpoint(self, owner: str, url: str) -> Endpoint:
        with translated():
            record = self._client.hgetall(keys.endpoint(owner, url))
        numbers: dict[str, Any] = {name.decode(): int(value) for name, value in record.items()}
        return Endpoint(**numbers)

    def redeliver(self, job_id: str, sequence: int) -> None:
        """Send an event again, at once. Raises NotFound when its job is gone."""
        self._add(job_id, sequence, "")

    def _add(self, job_id: str, sequence: int, kept_ms: int | str) -> None:
        with translated():
            added = self._scripts.run(
                "outbox_add",
                keys=[keys.OUTBOX, keys.delivery(job_id, sequence), _record(job_id)],
                args=[f"{job_id}:{sequence}", kept_ms],
            )
        if not added:
            raise NotFound(f"{job_id} is gone")

    # --- test events

    def add_test(self, test_id: str, owner: str, url: str) -> None:
        """Queue an event that belongs to no job; it and its delivery are kept for a day."""
        with translated():
            seconds, microseconds = self._client.time()
            now = seconds * 1000 + microseconds // 1000
            pipe = self._client.pipeline(transaction=True)
            pipe.hset(keys.webhook_test(test_id), mapping={"owner": owner, "url": url, "created_at": now})
            pipe.pexpire(keys.webhook_test(test_id), _TEST_KEPT_MS)
            pipe.execute()
        self._add(test_id, 1, _TEST_KEPT_MS)

    def test(self, test_id: str) -> tuple[Receiver, Event]:
        """Raises NotFound a day after it was added."""
        with translated():
            record = self._client.hgetall(keys.webhook_test(test_id))
        if not record:
            raise NotFound(f"no webhook test {test_id}")
        created_at = int(record[b"created_at"])
        receiver = Receiver(record[b"owner"].decode(), record[b"url"].decode(), created_at)
        return receiver, Event(test_id, 1, "webhook.test", created_at, None)


def is_test(job_id: str) -> bool:
    return job_id.startswith("test_")


def _record(job_id: str) -> str:
    return keys.webhook_test(job_id) if is_test(job_id) else keys.job(job_id)


def _delivery(record: dict[bytes, bytes]) -> Delivery:
    next_attempt_at = record.get(b"next_attempt_at")
    return Delivery(
        outcome=record.get(b"outcome", b"pending").decode(),
        attempts=int(record.get(b"attempts", 0)),
        tries=int(record.get(b"tries", 0)),
        forced=b"forced" in record,
        error=record.get(b"error", b"").decode(),
        next_attempt_at=int(next_attempt_at) if next_attempt_at else None,
        log=tuple(Attempt(**attempt) for attempt in json.loads(record.get(b"log", b"[]"))),
    )
