"""A state machine over submit, work, cancel, delete, expire and redeliver: the service against a model of itself.

`make api-fuzz` runs longer ones, and more of them.
"""

import os

from hypothesis import HealthCheck, assume
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from app import keys, wiring
from app.errors import LostLease
from app.store.outbox import Receiver, Settlement
from tests.api.orders import painting
from tests.servers import empty
from tests.store.orders import stored

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
URL = "http://127.0.0.1:1/"


class Lifecycle(RuleBasedStateMachine):
    """The model: for each job the state of each image, and whether it was removed."""

    jobs = Bundle("jobs")
    made: tuple = ()

    def __init__(self) -> None:
        super().__init__()
        self.http, self.store, self.client, self.settings = self.made
        empty(self.client)
        self.images: dict[str, list[str]] = {}
        self.leases: dict[str, dict[int, object]] = {}
        self.gone: set[str] = set()
        self.urls: dict[str, bool] = {}
        self.keyed: dict[str, tuple[int, str]] = {}

    def _submit(self, n, url, headers):
        body = {"prompt": "x", "size": "32x32", "n": n} | ({"webhook_url": URL} if url else {})
        return self.http.post("/v1/jobs", json=body, headers=headers)

    @rule(target=jobs, n=st.integers(1, 2), url=st.booleans())
    def submit(self, n, url):
        answer = self._submit(n, url, {})
        assert answer.status_code == 202
        job_id = answer.get_json()["id"]
        self.images[job_id], self.leases[job_id], self.urls[job_id] = ["queued"] * n, {}, url
        return job_id

    @rule(target=jobs, n=st.integers(1, 2), key=st.sampled_from("ab"))
    def submit_with_a_key(self, n, key):
        answer = self._submit(n, False, {"Idempotency-Key": key})
        if key in self.keyed and self.keyed[key][0] != n:
            assert answer.status_code == 422
            return multiple()
        if key in self.keyed and self.keyed[key][1] in self.gone:
            assert answer.status_code == 410
            return multiple()
        assert answer.status_code == 202
        job_id = answer.get_json()["id"]
        if key in self.keyed:
            assert job_id == self.keyed[key][1]
            return multiple()
        self.keyed[key] = (n, job_id)
        self.images[job_id], self.leases[job_id], self.urls[job_id] = ["queued"] * n, {}, False
        return job_id

    @rule(job=jobs, index=st.integers(0, 1))
    def claim(self, job, index):
        assume(job not in self.gone and index < len(self.images[job]) and self.images[job][index] == "queued")
        self.leases[job][index] = painting(self.store, job, index)
        self.images[job][index] = "running"

    @rule(job=jobs, index=st.integers(0, 1), ends=st.sampled_from(["commit", "fail", "renew"]))
    def work(self, job, index, ends):
        lease = self.leases[job].get(index)
        assume(lease is not None and job not in self.gone)
        before = self.images[job][index]
        try:
            if ends == "commit":
                self.store.commit(lease, stored(f"jobs/{job}/{index}/1.png"), steps=30)
            elif ends == "fail":
                self.store.fail(lease, "broken", "it broke")
            else:
                self.store.renew(lease, step=3)
        except LostLease:
            assert before in ("canceling", "canceled", "failed") or (before == "succeeded" and ends == "renew")
        after = {"commit": "succeeded", "fail": "failed", "renew": "running"}[ends]
        self.images[job][index] = {"canceling": "canceled", "running": after}.get(before, before)

    @rule(job=jobs)
    def cancel(self, job):
        answer = self.http.post(f"/v1/jobs/{job}/cancel")
        if job in self.gone:
            assert answer.status_code == 410
            return
        step = {"queued": "canceled", "running": "canceling"}
        self.images[job] = [step.get(state, state) for state in self.images[job]]
        if "canceling" in self.images[job]:
            assert answer.status_code == 202
        else:
            assert answer.status_code == (200 if "canceled" in self.images[job] else 409)

    def _done(self, job):
        return set(self.images[job]) <= {"succeeded", "failed", "canceled"}

    @rule(job=jobs)
    def delete(self, job):
        status = self.http.delete(f"/v1/jobs/{job}").status_code
        assert status == (410 if job in self.gone else 204 if self._done(job) else 409)
        if status == 204:
            self.gone.add(job)

    @rule(job=jobs)
    def time_is_over(self, job):
        assume(job not in self.gone and self._done(job))
        self.client.zadd(keys.EXPIRY, {job: 1}, xx=True)
        wiring.upkeep(self.settings, self.client).step()
        self.gone.add(job)

    @rule(job=jobs)
    def redeliver(self, job):
        answer = self.http.post(f"/v1/deliveries/dlv_{job}_1/redeliver")
        if job in self.gone:
            assert answer.status_code == 410
        else:
            told = self.urls[job] and self.store.event(job, 1) and self.store.event(job, 1).type != "image.canceled"
            assert answer.status_code == (202 if told else 404)

    @rule()
    def deliver_all(self):
        outbox = wiring.outbox(self.settings, self.client)
        for job, sequence in outbox.take(100, hold_ms=1):
            outbox.settle(job, sequence, Settlement("delivered", took_ms=1), Receiver("anybody", URL, 0))
        assert self.client.zcard(keys.OUTBOX) == 0

    @invariant()
    def every_job_is_as_the_model_says(self):
        for job, images in self.images.items():
            answer = self.http.get(f"/v1/jobs/{job}")
            if job in self.gone:
                assert answer.status_code == 410
                continue
            found = answer.get_json()
            shown = [{"canceling": "running"}.get(state, state) for state in images]
            assert [image["status"] for image in found["images"]] == shown
            assert (found["completed_at"] is not None) == self._done(job)
            sequences = [event.sequence for event in self.store.events(job)]
            assert sequences == list(range(1, len(sequences) + 1))

    @invariant()
    def the_books_agree(self):
        states = [state for job, images in self.images.items() for state in images if job not in self.gone]
        counts = {name.decode(): int(value) for name, value in self.client.hgetall(keys.COUNTS).items()}
        for ours, theirs in (("queued", "queued"), ("running", "painting"), ("canceling", "canceling")):
            assert counts.get(theirs, 0) == states.count(ours)
        alive = [state for state in states if state in ("queued", "running", "canceling")]
        assert self.client.zcard(keys.DUE) == len(alive)
        assert self.client.zcard(keys.WAITING_REALTIME) == states.count("queued")
        listed = [job["id"] for job in self.http.get("/v1/jobs?limit=100").get_json()["data"]]
        assert set(listed) == set(self.images) - self.gone


def test_the_service_agrees_with_its_model(http, store, client, servers):
    settings = servers.settings(lease_s=600, hint_s=0.2)
    machine = type("Machine", (Lifecycle,), {"made": (http, wiring.job_store(settings, client), client, settings)})
    machine.TestCase.settings = hypothesis_settings(
        max_examples=EXAMPLES or 5,
        stateful_step_count=40 if EXAMPLES else 15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase("runTest").runTest()
