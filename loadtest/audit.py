"""After the users have gone: every accepted job has ended right and is listed once; what was refused is nowhere."""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import gevent
from locust.clients import HttpSession
from locust.env import Environment
from requests import Response

from loadtest import summary
from loadtest.asking import Abandoned
from loadtest.checks import ENDED, CheckFailed, expect, same
from loadtest.client import Client
from loadtest.event_log import EventLog
from loadtest.ledger import Entry
from loadtest.orders import Order
from loadtest.session import Session, sessions

log = logging.getLogger("loadtest")

#: The clocks of the two sides may differ by so much.
_CLOCKS = timedelta(minutes=2)


class Audit:
    def __init__(self, environment: Environment, session: Session, began: datetime) -> None:
        self._session = session
        self._began = began - _CLOCKS
        self._http = HttpSession(environment.host, environment.events.request, None)
        self._stats = environment.stats
        self._http.trust_env = False
        self._client = Client(self._http, session)

    def run(self) -> None:
        """Report what is wrong to Locust, and the totals."""
        with self._http:
            self._attempt(self._check_list)
            give_up = time.monotonic() + self._session.options.patience_s
            for job_id, entry in list(self._session.ledger.entries.items()):
                if not entry.checked:
                    self._settle(job_id, entry, give_up)
        self._session.close()
        self._conclude()

    def _check_list(self) -> None:
        """The service lists our jobs once each. An answer that a leaving user did not wait for is found here."""
        listed = [job for job in self._listed() if job["metadata"].get("loadtest") == self._session.run]
        entries = self._session.ledger.entries
        known = {entry.order.number for entry in entries.values()}

        def check() -> None:
            ids = [job["id"] for job in listed]
            same("the jobs that are listed twice", len(ids) - len(set(ids)), 0)
            same("the jobs of refused requests", [j["id"] for j in listed if j["metadata"]["order"] == "refused"], [])
            numbers = [job["metadata"]["order"] for job in listed]
            same("the orders with several jobs", sorted({n for n in numbers if numbers.count(n) > 1}), [])
            missing = [job_id for job_id, entry in entries.items() if not entry.deleted and job_id not in ids]
            same("the accepted jobs that are not listed", missing, [])
            strangers = [
                job_id for job_id in self._session.receiver.logs if job_id not in entries and job_id not in ids
            ]
            same("the jobs that only webhooks know", strangers, [])

        self._client.confirm("AUDIT", "list", check)
        for job in listed:
            if job["id"] not in entries and job["metadata"]["order"] not in known:
                self._session.ledger.accept(job["id"], _order_of(job), webhooks=job["webhook_url"] is not None)

    def _listed(self) -> list[dict[str, Any]]:
        def check(answer: Response) -> dict[str, Any]:
            same("the status", answer.status_code, 200)
            page: dict[str, Any] = answer.json()
            same("whether there is a cursor", page["next_cursor"] is not None, page["has_more"])
            return page

        found: list[dict[str, Any]] = []
        query = {"limit": "100", "created_after": self._began.isoformat(timespec="seconds")}
        while True:
            page = self._client.ask("GET", "/v1/jobs", check, name="/v1/jobs?cursor", params=query)
            found += page["data"]
            if not page["has_more"]:
                return found
            query["cursor"] = page["next_cursor"]

    def _settle(self, job_id: str, entry: Entry, give_up: float) -> None:
        """Wait for the job's end, and look at it as its own user would have done."""
        if entry.deleted:
            return

        def look() -> None:
            while True:
                job, _ = self._client.look(entry.order, job_id, wait=3)
                if job is not None and job["status"] in ENDED:
                    break
                expect(time.monotonic() < give_up, f"{job_id} has not ended after the run")
            statuses = ("succeeded", "canceled")
            self._client.settle(entry.order, job, statuses)
            told = EventLog(job_id, in_order=True)
            for event in self._client.events(job_id):
                told.add(event)
            told.check(entry.order, statuses)
            called = self._session.receiver.log(job_id) if entry.webhooks else told
            while not called.complete and time.monotonic() < give_up:
                gevent.sleep(0.1)
            called.check(entry.order, statuses)

        self._attempt(lambda: self._client.confirm("AUDIT", "job of a user who left", look))

    def _attempt(self, work: Any) -> None:  # noqa: ANN401
        """What failed is reported already; the audit goes on."""
        try:
            work()
        except Abandoned:
            return

    def _conclude(self) -> None:
        totals = self._session.ledger.totals()
        for job_id in totals.lost:
            self._session.report(
                "AUDIT", "lost job", None, CheckFailed(f"{job_id} was accepted and is not known to have ended")
            )
        wrong = None if totals.accepted else CheckFailed("no job was accepted")
        self._session.report("AUDIT", "accepted jobs", None, wrong)
        log.info("%s", totals)
        if (path := self._session.options.summary) is not None:
            summary.write(path, self._session.run, totals, self._stats)


def _order_of(job: dict[str, Any]) -> Order:
    """The order behind a job whose answer nobody saw."""
    parameters = job["parameters"]
    width, height = map(int, parameters["size"].split("x"))
    names = ("prompt", "n", "seed", "steps", "output_format", "temperature", "embed_metadata")
    return Order(
        run=job["metadata"]["loadtest"],
        number=job["metadata"]["order"],
        width=width,
        height=height,
        **{name: parameters[name] for name in names},
    )


class Auditor:
    """Locust's listener: begins each run's session, and audits it at its end."""

    def __init__(self) -> None:
        self._began = datetime.now(UTC)

    def begin(self, environment: Environment, **_: Any) -> None:  # noqa: ANN401 - Locust's events may grow
        self._began = datetime.now(UTC)
        sessions.begin(environment)

    def end(self, environment: Environment, **_: Any) -> None:  # noqa: ANN401 - Locust's events may grow
        if environment.host is None:
            # Locust has said that it needs one.
            environment.process_exit_code = 1
            return
        Audit(environment, sessions.current, self._began).run()
