"""The courier: delivers webhook events from the outbox, until the receiver confirms or the tries are used up."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from app import crash_points, wiring
from app.domain.deliveries import Delivery
from app.errors import NotFound, Unavailable
from app.settings import Settings, instance_of, worker_name
from app.store.jobs import JobStore
from app.store.outbox import Outbox, Receiver, Settlement, is_test
from app.views import event_view, test_event_view
from app.webhooks.sender import Outcome, WebhookSender
from app.webhooks.signing import headers
from workers.heartbeat import Heartbeat
from workers.process import patiently, stop_on_signals

log = structlog.get_logger(__name__)

#: Seconds from a failed attempt to the next (the schedule that Standard Webhooks gives as an example).
RETRY_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
#: An event is given up at this age also when pauses of its endpoint kept it from being tried, seconds.
OLDEST_S = 432_000
_PARALLEL = 16
#: Deliveries to one host at once: one that is slow must leave threads to the others.
_BY_HOST = 4
_CROWDED_MS = 1_000
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Letter:
    """What is to be delivered, and to whom. `timestamp`: of the event, server ms."""

    receiver: Receiver
    event_id: str
    timestamp: int
    body: str


class Courier:
    """Takes what is due and has it delivered by a few threads; an attempt cut short by a kill is made again.

    `secrets`: what signs now; asked for each attempt, since it may be rotated.
    """

    def __init__(
        self,
        store: JobStore,
        outbox: Outbox,
        sender: WebhookSender,
        *,
        secrets: Callable[[], list[str]],
        base_url: str,
        hold_ms: int,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._sender = sender
        self._secrets = secrets
        self._base_url = base_url
        self._hold_ms = hold_ms
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="delivery")
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._by_host: Counter[str] = Counter()

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

    def _letter(self, job_id: str, sequence: int) -> Letter | None:
        """None when the job or the test has been removed meanwhile."""
        try:
            if is_test(job_id):
                receiver, test = self._outbox.test(job_id)
                return Letter(receiver, test.id, test.timestamp, _json(test_event_view(test)))
            job = self._store.get(job_id, even_gone=True)
        except NotFound:
            return None
        event = self._store.event(job_id, sequence)
        if event is None or job.webhook_url is None:
            return None
        receiver = Receiver(job.owner, job.webhook_url, job.created_at)
        return Letter(receiver, event.id, event.timestamp, _json(event_view(event, job, self._base_url)))

    def _attempt(self, job_id: str, sequence: int) -> None:
        letter = self._letter(job_id, sequence)
        if letter is None:
            self._outbox.settle(job_id, sequence, Settlement("given_up", error="the event is gone"), None)
            return
        host = urlsplit(letter.receiver.url).netloc
        with self._lock:
            crowded = self._by_host[host] >= _BY_HOST
            if not crowded:
                self._by_host[host] += 1
        if crowded:
            self._outbox.postpone(job_id, sequence, _CROWDED_MS)
            return
        try:
            self._send(job_id, sequence, letter)
        finally:
            with self._lock:
                self._by_host[host] -= 1
                if not self._by_host[host]:
                    del self._by_host[host]

    def _send(self, job_id: str, sequence: int, letter: Letter) -> None:
        delivery = self._outbox.delivery(job_id, sequence)
        verdict = self._outbox.begin(job_id, sequence, letter.receiver)
        too_old = not delivery.forced and time.time() - letter.timestamp / 1000 > OLDEST_S
        if verdict == "gone" or too_old:
            error = "the endpoint answered 410 before" if verdict == "gone" else "the event is too old"
            self._outbox.settle(job_id, sequence, Settlement("given_up", error=error), letter.receiver)
        elif verdict == "go":
            started = time.monotonic()
            signed = headers(self._secrets(), letter.event_id, letter.body)
            crash_points.reach("courier.before_send")
            outcome = self._sender.send(letter.receiver.url, signed, letter.body)
            crash_points.reach("courier.after_send")
            took_ms = round((time.monotonic() - started) * 1000)
            self._settle(job_id, sequence, letter, outcome, delivery, took_ms)

    def _settle(
        self, job_id: str, sequence: int, letter: Letter, outcome: Outcome, delivery: Delivery, took_ms: int
    ) -> None:
        pause = 0.0
        if outcome.delivered:
            result = "delivered"
        elif outcome.final or delivery.tries >= len(RETRY_S):
            result = "given_up"
        else:
            result = "retry"
            pause = max(RETRY_S[delivery.tries] * random.uniform(0.8, 1.2), outcome.retry_after_s)  # noqa: S311 - jitter
        settlement = Settlement(result, round(pause * 1000), outcome.status, outcome.error, took_ms)
        paused = self._outbox.settle(job_id, sequence, settlement, letter.receiver)
        log.info(
            "delivery",
            job=job_id,
            sequence=sequence,
            result=result,
            status=outcome.status,
            why=outcome.error.split(":")[0],
        )
        if paused:
            log.warning("endpoint_paused", job=job_id, host=urlsplit(letter.receiver.url).hostname)


def _json(view: object) -> str:
    return json.dumps(view, ensure_ascii=False, separators=(",", ":"))


def run(settings: Settings) -> None:
    stop: threading.Event = stop_on_signals()
    client = wiring.worker_client(settings)
    store = wiring.job_store(settings, client)
    patiently(lambda: wiring.webhook_secrets(settings, client), stop)
    courier = Courier(
        store,
        wiring.outbox(settings, client),
        wiring.webhook_sender(settings),
        secrets=lambda: wiring.webhook_secrets(settings, client),
        base_url=settings.base_url,
        # Longer than the slowest attempt, so that no second courier repeats one that is still under way.
        hold_ms=round(settings.webhook_timeout_s * 4000) + 30_000,
    )
    name = worker_name("courier")
    with Heartbeat(
        store,
        wiring.registry(client),
        name=name,
        role="courier",
        device="",
        lease_s=settings.lease_s,
        instance=instance_of(settings, "courier"),
    ) as heartbeat:
        heartbeat.say("ready")
        while not stop.is_set():
            if not patiently(courier.step, stop):
                stop.wait(_POLL_S)
        heartbeat.say("stopping")
        courier.close()
