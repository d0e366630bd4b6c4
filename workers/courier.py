"""The courier: delivers webhook events from the outbox, until the receiver confirms or the tries are used up."""

import json
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from app import wiring
from app.errors import Unavailable
from app.settings import Settings, worker_name
from app.store.jobs import JobStore
from app.store.outbox import Outbox
from app.views import event_view
from app.webhooks.sender import Outcome, WebhookSender
from app.webhooks.signing import headers
from workers.heartbeat import Heartbeat
from workers.process import patiently, stop_on_signals

log = structlog.get_logger(__name__)

#: Seconds from a failed attempt to the next (the schedule that Standard Webhooks gives as an example).
RETRY_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
_PARALLEL = 16
_POLL_S = 0.25


class Courier:
    """Takes what is due and has it delivered by a few threads; an attempt cut short by a kill is made again."""

    def __init__(
        self, store: JobStore, outbox: Outbox, sender: WebhookSender, *, secret: str, base_url: str, hold_ms: int
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._sender = sender
        self._secret = secret
        self._base_url = base_url
        self._hold_ms = hold_ms
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="delivery")
        self._running: set[Future[None]] = set()

    def step(self) -> bool:
        """Start deliveries for every free thread; returns whether there were any."""
        self._running = {future for future in self._running if not future.done()}
        free = _PARALLEL - len(self._running)
        due = self._outbox.take(free, hold_ms=self._hold_ms) if free else []
        self._running |= {self._pool.submit(self._deliver, job_id, sequence) for job_id, sequence in due}
        return bool(due)

    def close(self) -> None:
        """Wait for the attempts under way."""
        self._pool.shutdown(wait=True)

    def _deliver(self, job_id: str, sequence: int) -> None:
        try:
            self._attempt(job_id, sequence)
        except Unavailable as error:
            log.warning("delivery_postponed", job=job_id, sequence=sequence, error=str(error))
        except Exception:
            log.exception("delivery_crashed", job=job_id, sequence=sequence)

    def _attempt(self, job_id: str, sequence: int) -> None:
        event = self._store.event(job_id, sequence)
        if event is None:
            self._outbox.settle(job_id, sequence, "given_up", error="the event is gone")
            return
        job = self._store.get(job_id)
        if job.webhook_url is None:
            raise ValueError(f"{job_id} has an event to deliver and no webhook_url")
        body = json.dumps(event_view(event, job, self._base_url))
        outcome = self._sender.send(job.webhook_url, headers(self._secret, event.id, body), body)
        self._settle(job_id, sequence, outcome)

    def _settle(self, job_id: str, sequence: int, outcome: Outcome) -> None:
        attempts = self._outbox.attempts(job_id, sequence)
        if outcome.delivered:
            result, pause = "delivered", 0.0
        elif outcome.final or attempts >= len(RETRY_S):
            result, pause = "given_up", 0.0
        else:
            result, pause = "retry", RETRY_S[attempts] * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self._outbox.settle(
            job_id, sequence, result, retry_ms=round(pause * 1000), status=outcome.status, error=outcome.error
        )
        log.info(
            "delivery",
            job=job_id,
            sequence=sequence,
            result=result,
            status=outcome.status,
            why=outcome.error.split(":")[0],
        )


def run(settings: Settings) -> None:
    stop: threading.Event = stop_on_signals()
    client = wiring.worker_client(settings)
    store = wiring.job_store(settings, client)
    courier = Courier(
        store,
        wiring.outbox(client),
        wiring.webhook_sender(settings),
        secret=patiently(lambda: wiring.webhook_secret(settings, client), stop),
        base_url=settings.base_url,
        # Longer than the slowest attempt, so that no second courier repeats one that is still under way.
        hold_ms=round(settings.webhook_timeout_s * 4000) + 30_000,
    )
    name = worker_name("courier")
    with Heartbeat(
        store, wiring.registry(client), name=name, role="courier", device="", lease_s=settings.lease_s
    ) as heartbeat:
        heartbeat.say("ready")
        while not stop.is_set():
            if not patiently(courier.step, stop):
                stop.wait(_POLL_S)
        heartbeat.say("stopping")
        courier.close()
