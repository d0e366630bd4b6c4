"""A stack whose processes tests kill: fast to start again, on the tiny checkpoint, with times short enough to watch."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from app import wiring
from app.bench.chaos.checker import check
from app.bench.chaos.cluster import Cluster
from app.bench.chaos.history import Accepted, History, Order
from app.bench.chaos.receiver import Receiver
from app.bench.chaos.run import environment
from app.bench.chaos.witness import Witness
from app.connect import Client
from app.domain.messages import ImageRef
from app.errors import PlanpaintError

FAST = {"PLANPAINT_LEASE_S": "3", "PLANPAINT_HINT_S": "1", "PLANPAINT_SWEEP_S": "0.2", "PLANPAINT_MAX_ATTEMPTS": "5"}
#: Of every order here. Equal orders become equal pictures, which the checker asks for.
_BODY = {"prompt": "a red circle", "size": "64x64", "steps": 2, "seed": 1, "embed_metadata": False}


class Attacked:
    """A cluster with a receiver and a witness, and what was ordered of it."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.witness = Witness(cluster.settings)
        self.client: Client = wiring.worker_client(cluster.settings)
        self._number = 0

    def close(self) -> None:
        self.witness.close()
        self.client.close()

    def until(self, condition, what: str, timeout_s: float = 150.0) -> None:
        """Everything that dies meanwhile is started again."""

        def met() -> bool:
            try:
                return bool(condition())
            except (PlanpaintError, requests.exceptions.RequestException):
                return False

        self.cluster.wait(what, met, timeout_s)

    def restart(self, role: str, **extra: str) -> None:
        """Kill the role's first process; the next one has this in its environment besides."""
        process = self.cluster.of(role)[0]
        process.signal(9)
        process.extra = extra
        self.until(lambda: not process.extra, f"a new {role}")
        self.until(self.cluster.ready, f"the new {role}'s readiness")
        if role == "api":  # it keeps no heartbeat that tells
            url = f"{self.cluster.api_url}/healthz"
            self.until(lambda: requests.get(url, timeout=1).ok, "an answer of the new API")

    def order(self, **fields: Any) -> Accepted:
        """Submit as a client should: with a key, until there is an answer."""
        self._number += 1
        body = _BODY | {"webhook_url": self.receiver.url} | fields
        headers = {"Idempotency-Key": f"order-{self._number}"}
        ids: list[str] = []

        def answered() -> bool:
            answer = requests.post(f"{self.cluster.api_url}/v1/jobs", json=body, headers=headers, timeout=5)
            if answer.status_code in (200, 202):
                ids.append(answer.json()["id"])
            else:
                assert answer.status_code == 503, answer.text
            return bool(ids)

        self.until(answered, "the answer to a submit")
        width, height = map(int, body["size"].split("x"))
        look = 100 * body["steps"] + body["seed"]
        return Accepted(Order(self._number, look, body.get("n", 1), width, height, "webhook_url" in body), ids)

    def state(self, accepted: Accepted, index: int = 0) -> str:
        return self.witness.record(ImageRef(accepted.ids[0], index))[0]

    def ended(self, *accepted: Accepted) -> bool:
        return self.witness.all_ended(accepted)

    def verdict(self, *accepted: Accepted) -> list:
        """Wait for the end of these orders and their webhooks, and compare everything with what was promised."""
        self.until(lambda: self.ended(*accepted), f"the end of {[each.ids for each in accepted]}")

        def delivered() -> bool:
            # An event whose courier died waits for longer than any attempt lasts: that time passes here.
            for job_id, sequence, in_s in self.witness.waiting_webhooks():
                if in_s > 10:
                    self.client.zadd("planpaint:outbox", {f"{job_id}:{sequence}": 0}, xx=True)
            return not self.witness.waiting_webhooks()

        self.until(delivered, "the deliveries")
        jobs = self.witness.jobs(accepted)
        self.until(lambda: not any(self.witness.left().values()), "an empty queue")
        ids = {event.event_id for job in jobs.values() if job for event in job.events}
        received = tuple(each for each in self.receiver.received if each.event_id in ids)
        return check(History(accepted, 0, received, jobs, overdue=self.witness.overdue(by_s=5)))


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint) -> Iterator[Attacked]:
    """One stack for all tests that leave it running: one worker of each kind."""
    folder = tmp_path_factory.mktemp("cluster")
    settings = environment(tiny_checkpoint.folder) | FAST
    with Receiver() as receiver, Cluster(folder, {}, settings) as cluster:
        found = Attacked(cluster, receiver)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> None:
    """A test begins with everything running, whatever the one before has done."""
    if "attacked" in request.fixturenames:
        stack = request.getfixturevalue("attacked")
        stack.until(stack.cluster.ready, "readiness")
