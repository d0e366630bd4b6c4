"""Callers that do as clients are told: an idempotency key on each submit, and again when the service is away."""

import itertools
import random
import threading
import time
from typing import Any

import requests

from app.bench.chaos.history import Accepted, Order
from app.launcher.stack import direct

_THREADS = 8
_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
#: A caller that gets no answer for so long gives up, seconds.
_PATIENCE_S = 180.0
#: Prompt, width, height, steps: few enough that each is asked for many times.
_LOOKS = (
    ("a red circle", 32, 32, 1),
    ("a green square on white", 32, 32, 2),
    ("two blue rings", 64, 32, 2),
    ("a star", 32, 64, 1),
    ("a cross", 64, 64, 2),
)
_SEEDS = 3
#: Most images of a job, and their frequencies.
_SIZES, _SIZE_WEIGHTS = (1, 2, 3, 4), (70, 15, 10, 5)
_WEBHOOKS, _CANCELS, _REPEATS, _BATCH = 0.6, 0.08, 0.15, 0.3


class Callers:
    """Submits `jobs` orders, each at its time, as far as the answers come in time; `join` waits for all."""

    def __init__(self, urls: list[str], receiver_url: str, *, seed: int, jobs: int, seconds: float) -> None:
        self._urls = itertools.cycle(urls)
        self._receiver_url = receiver_url
        self._seed = seed
        self._jobs = jobs
        self._seconds = seconds
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._started = 0.0
        self.accepted: list[Accepted] = []
        self.unanswered = 0
        self.surprises: list[str] = []
        self._threads = [threading.Thread(target=self._run, name=f"caller-{n}") for n in range(_THREADS)]

    def start(self) -> None:
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def snapshot(self) -> list[Accepted]:
        with self._lock:
            return list(self.accepted)

    def _run(self) -> None:
        with direct() as session:
            while (number := next(self._numbers)) < self._jobs:
                time.sleep(max(0.0, self._started + number * self._seconds / self._jobs - time.monotonic()))
                try:
                    self._order(session, number)
                except TimeoutError:
                    with self._lock:
                        self.unanswered += 1
                except RuntimeError as error:
                    with self._lock:
                        self.surprises.append(str(error))

    def _order(self, session: requests.Session, number: int) -> None:
        draw = random.Random(f"{self._seed}/{number}")  # noqa: S311 - a load, not secrets
        look = draw.randrange(len(_LOOKS))
        prompt, width, height, steps = _LOOKS[look]
        first = draw.randrange(_SEEDS)
        (n,) = draw.choices(_SIZES, _SIZE_WEIGHTS)
        webhook = draw.random() < _WEBHOOKS
        order = Order(number, look * 100 + first, n, width, height, webhook)
        body: dict[str, Any] = {
            "prompt": prompt,
            "size": f"{width}x{height}",
            "steps": steps,
            "seed": first,
            "n": n,
            "embed_metadata": False,
            "priority": "batch" if draw.random() < _BATCH else "realtime",
        }
        if webhook:
            body["webhook_url"] = self._receiver_url
        accepted = Accepted(order)
        # Before the first answer: an id must not be forgotten because a later call fails.
        accepted.ids.append(self._submit(session, body, number))
        accepted.canceled = draw.random() < _CANCELS
        with self._lock:
            self.accepted.append(accepted)
        if draw.random() < _REPEATS:
            accepted.ids.append(self._submit(session, body, number))
        if accepted.canceled:
            time.sleep(draw.uniform(0, 2))
            # 409: everything had ended by then.
            self._ask(session, "POST", f"/v1/jobs/{accepted.ids[0]}/cancel", (200, 202, 409))

    def _submit(self, session: requests.Session, body: dict[str, Any], number: int) -> str:
        key = {"Idempotency-Key": f"chaos-{self._seed}-{number}"}
        return str(self._ask(session, "POST", "/v1/jobs", (200, 202), json=body, headers=key).json()["id"])

    def _ask(
        self,
        session: requests.Session,
        method: str,
        path: str,
        statuses: tuple[int, ...],
        **how: Any,  # noqa: ANN401 - as requests takes it
    ) -> requests.Response:
        """Until it answers. Raises TimeoutError, and RuntimeError for an answer that no caller should get."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            # The next one, as behind a balancer that does not know yet which of them is down.
            with self._lock:
                url = next(self._urls)
            try:
                answer = session.request(method, url + path, timeout=_TIMEOUT_S, **how)
            except requests.exceptions.RequestException:
                time.sleep(_PAUSE_S)
                continue
            if answer.status_code in statuses:
                return answer
            if answer.status_code not in (429, 502, 503, 504):
                raise RuntimeError(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
            time.sleep(_PAUSE_S)
        raise TimeoutError(f"{method} {path}")
