"""Three ways in which callers wait for their pictures."""

import random
import secrets
import time

import gevent
from locust import HttpUser, between, task
from locust.exception import StopUser
from requests import Response

from loadtest.asking import Abandoned
from loadtest.checks import expect, same
from loadtest.client import Client
from loadtest.event_log import EventLog
from loadtest.orders import Order
from loadtest.session import sessions


class ServiceUser(HttpUser):
    """Somebody with a client of the service."""

    abstract = True
    wait_time = between(0.1, 0.8)

    def on_start(self) -> None:
        self.session = sessions.current
        self.service = Client(self.client, self.session)


class PollingUser(ServiceUser):
    """Submits and polls: plainly, by long polls, or by waiting in the submit itself. Some delete what they have."""

    weight = 4

    @task
    def submit_and_poll(self) -> None:
        order = self.session.book.draw()
        began = time.monotonic()
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        if random.random() < 0.25:
            headers["Prefer"] = "wait=5"
        job = self.service.submit(order, headers=headers)
        if job["completed_at"] is None:
            job = self.service.until_ended(order, job["id"], wait=random.choice((0, 3)))
        self.session.report("JOB", "submit and poll", (time.monotonic() - began) * 1000, None)
        self.service.settle(order, job)
        if random.random() < 0.15:
            self._delete(job["id"])

    def _delete(self, job_id: str) -> None:
        def check(answer: Response) -> None:
            same("the status", answer.status_code, 204)
            same("the body", answer.content, b"")

        self.session.ledger.entries[job_id].deleted = True
        self.service.ask("DELETE", f"/v1/jobs/{job_id}", check, name="/v1/jobs/[id]")
        self.service.refused("GET", f"/v1/jobs/{job_id}", 410, "gone", name="/v1/jobs/[id] (deleted)")


class StreamingUser(ServiceUser):
    """Submits and follows the events."""

    weight = 3

    @task
    def submit_and_follow(self) -> None:
        order = self.session.book.draw()
        began = time.monotonic()
        job_id = self.service.submit(order)["id"]
        log = EventLog(job_id, in_order=True)
        self.service.follow_to_the_end(order, log)
        self.session.report("JOB", "submit and stream", (time.monotonic() - began) * 1000, None)
        self.service.check_log(order, log)
        job, _ = self.service.look(order, job_id)
        self.service.settle(order, job or {})


class WebhookUser(ServiceUser):
    """Submits and is called back."""

    weight = 3

    def on_start(self) -> None:
        super().on_start()
        try:
            found = self.service.ask("GET", "/v1/webhook-secret", _secrets, name="/v1/webhook-secret")
        except Abandoned:
            # It could verify nothing.
            raise StopUser from None
        self.session.receiver.secrets = found

    @task
    def submit_and_be_called(self) -> None:
        order = self.session.book.draw()
        began = time.monotonic()
        # Canceled images are told only to those who ask for them; then the sequence has no gap.
        kinds = ["job.started", "image.completed", "image.failed", "image.canceled", "job.completed"]
        job = self.service.submit(order, webhook_url=self.session.receiver_url, webhook_events=kinds)
        log = self.session.receiver.log(job["id"])
        give_up = began + self.session.options.patience_s
        while not log.complete and time.monotonic() < give_up:
            gevent.sleep(0.05)
        self.session.report("JOB", "submit and webhooks", (time.monotonic() - began) * 1000, None)
        self.service.confirm("WEBHOOK", "log", lambda: log.check(order, ("succeeded",)))
        ended, _ = self.service.look(order, job["id"])
        self.service.settle(order, ended or {})
        self._check_deliveries(order, log)

    def _check_deliveries(self, order: Order, log: EventLog) -> None:
        """The service knows what it delivered. It notes that after our answer, so it may need a moment."""

        def check(answer: Response) -> set[str]:
            same("the status", answer.status_code, 200)
            told = [(event["sequence"], event["type"]) for event in log.events]
            found = answer.json()["data"]
            same("the deliveries", [(one["sequence"], one["type"]) for one in found], told)
            return {one["status"] for one in found}

        path, name = f"/v1/jobs/{log.job_id}/deliveries", "/v1/jobs/[id]/deliveries"
        for _ in range(20):
            statuses = self.service.ask("GET", path, check, name=name)
            if statuses == {"delivered"}:
                return
            gevent.sleep(0.1)
        self.service.confirm("WEBHOOK", "delivery log", lambda: same("the statuses", statuses, {"delivered"}))


def _secrets(answer: Response) -> list[str]:
    same("the status", answer.status_code, 200)
    found = answer.json()
    expect(found["key"].startswith("whsec_"), "the webhook secret is none of Standard Webhooks")
    return [found["key"], *found["previous"]]
