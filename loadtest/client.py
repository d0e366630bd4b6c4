"""A client of the service: what callers do with jobs, pictures and events."""

import time
from collections.abc import Collection, Iterator
from contextlib import closing
from http import HTTPStatus
from typing import Any

import gevent
import requests
from PIL import Image
from requests import Response

from loadtest import checks, pictures, stream
from loadtest.asking import Abandoned, Asker, said
from loadtest.checks import CheckFailed, expect, same
from loadtest.event_log import EventLog, check_progress
from loadtest.orders import Order

Job = dict[str, Any]
_CHUNK = 1024


class Client(Asker):
    """Every call raises Abandoned when a check fails."""

    # --- jobs

    def submit(self, order: Order, *, headers: dict[str, str] | None = None, **fields: Any) -> Job:  # noqa: ANN401 - JSON
        """The accepted job; it is in the ledger from now on."""

        def check(answer: Response) -> Job:
            waits = "Prefer" in (headers or {})
            expect(answer.status_code in ((200, 202) if waits else (202,)), said(answer))
            job: Job = answer.json()
            self.session.ledger.accept(job["id"], order, webhooks="webhook_url" in fields)
            checks.job_record(order, job)
            same("Location", answer.headers["Location"], f"/v1/jobs/{job['id']}")
            same("whether the job has ended", job["status"] in checks.ENDED, answer.status_code == 200)
            same("whether Retry-After is set", "Retry-After" in answer.headers, answer.status_code == 202)
            return job

        return self.ask("POST", "/v1/jobs", check, name="/v1/jobs", headers=headers, json=order.body() | fields)

    def look(self, order: Order, job_id: str, *, tag: str | None = None, wait: int = 0) -> tuple[Job | None, str]:
        """The job and its ETag; None for what has not changed since `tag`."""

        def check(answer: Response) -> tuple[Job | None, str]:
            if answer.status_code == HTTPStatus.NOT_MODIFIED:
                same("the ETag of a 304", answer.headers["ETag"], tag)
                same("the body of a 304", answer.content, b"")
                return None, answer.headers["ETag"]
            same("the status", answer.status_code, HTTPStatus.OK)
            expect(answer.headers["ETag"] != tag, "200 with the ETag that was sent")
            job = answer.json()
            checks.job_record(order, job, job_id)
            return job, answer.headers["ETag"]

        headers = {"If-None-Match": tag} if tag else {}
        path = f"/v1/jobs/{job_id}" + (f"?wait={wait}" if wait else "")
        return self.ask("GET", path, check, name=f"/v1/jobs/[id]{'?wait' if wait else ''}", headers=headers)

    def until_ended(self, order: Order, job_id: str, *, wait: int = 0) -> Job:
        """Poll. `wait`: seconds for which each answer may be held."""
        give_up = time.monotonic() + self.session.options.patience_s
        tag: str | None = None
        while time.monotonic() < give_up:
            job, tag = self.look(order, job_id, tag=tag, wait=wait)
            if job is not None and job["status"] in checks.ENDED:
                return job
            if not wait:
                gevent.sleep(0.3)
        patience = self.session.options.patience_s
        self.confirm("JOB", "end", lambda: expect(False, f"a job has not ended within {patience:g} s"))
        raise Abandoned

    def settle(self, order: Order, job: Job, statuses: Collection[str] = ("succeeded",)) -> None:
        """Check the record of an ended job and every picture of it, and settle it in the ledger."""
        entry = self.session.ledger.accept(job["id"], order)
        entry.status = job["status"]
        self.confirm("JOB", "record at the end", lambda: checks.ended(order, job, statuses))
        for image in job["images"]:
            if image["status"] == "succeeded":
                self._picture(order, job["id"], image)
        entry.checked = True

    def _picture(self, order: Order, job_id: str, image: dict[str, Any]) -> None:
        content = f"/v1/jobs/{job_id}/images/{image['index']}/content"
        session = self.session

        def look(answer: Response) -> Image.Image:
            same("the status", answer.status_code, HTTPStatus.OK)
            session.gallery.add(order, job_id, image)
            return pictures.check_file(order, job_id, image, answer.headers["Content-Type"], answer.content)

        def look_small(answer: Response) -> None:
            same("the status", answer.status_code, HTTPStatus.OK)
            pictures.check_thumbnail(order, answer.headers["Content-Type"], answer.content)

        picture = self.ask("GET", self._signed(content, "content"), look, name="(storage) picture")
        session.ledger.pictures += 1
        self.ask(
            "GET", self._signed(f"{content}?variant=thumbnail", "thumbnail"), look_small, name="(storage) thumbnail"
        )
        if order.judged and session.options.judge:
            began = time.monotonic()
            self.confirm("JUDGE", "picture by its prompt", lambda: pictures.check_drawing(order, picture), since=began)
            session.ledger.judged += 1

    def _signed(self, path: str, name: str) -> str:
        """The signed URL that the service redirects to."""

        def check(answer: Response) -> str:
            same("the status", answer.status_code, HTTPStatus.TEMPORARY_REDIRECT)
            same("Cache-Control", answer.headers["Cache-Control"], "no-store")
            return str(answer.headers["Location"])

        return self.ask("GET", path, check, name=f"/v1/jobs/[id]/images/[index]/{name}")

    # --- events

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """The log as JSON."""

        def check(answer: Response) -> list[dict[str, Any]]:
            same("the status", answer.status_code, HTTPStatus.OK)
            found: list[dict[str, Any]] = answer.json()["data"]
            return found

        accept = {"Accept": "application/json"}
        return self.ask("GET", f"/v1/jobs/{job_id}/events", check, name="/v1/jobs/[id]/events (JSON)", headers=accept)

    def follow(self, order: Order, log: EventLog, *, leave_after: int = 0, pause_s: float = 0.0) -> None:
        """Read one event stream behind what the log has, to its end.

        leave_after: hang up after so many lines of the log. pause_s: sleep between reads of a few bytes.
        """
        name = f"/v1/jobs/[id]/events{' (again)' if log.newest else ''}"
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(log.newest)} if log.newest else {})
        answer = self.ask("GET", f"/v1/jobs/{log.job_id}/events", _stream_head, name=name, headers=headers, stream=True)
        began = time.monotonic()

        def read() -> None:
            told = 0
            try:
                for event in stream.read(_chunks(answer, pause_s)):
                    if event.type == "image.progress":
                        check_progress(order, log.job_id, log.newest, event.data)
                        continue
                    same("the type of an event, in its data,", event.data["type"], event.type)
                    same("the id of an event", event.id, str(event.data["sequence"]))
                    log.add(event.data)
                    told += 1
                    if told == leave_after:
                        return
            except requests.exceptions.RequestException as error:
                raise CheckFailed(f"the stream broke off: {type(error).__name__}") from error
            if answer.status_code == HTTPStatus.NO_CONTENT:
                expect(log.complete, "204 to one who has not been told everything")

        with closing(answer):
            self.confirm("SSE", "stream", read, since=began)

    def follow_to_the_end(self, order: Order, log: EventLog, *, pause_s: float = 0.0) -> None:
        """Connect again, as a browser does, until the log is complete: a service may end streams that last long."""
        give_up = time.monotonic() + self.session.options.patience_s
        while not log.complete and time.monotonic() < give_up:
            self.follow(order, log, pause_s=pause_s)

    def check_log(self, order: Order, log: EventLog, statuses: Collection[str] = ("succeeded",)) -> None:
        """What a reader was told is whole, and the same as the log that everybody reads."""
        same_log = self.events(log.job_id)
        self.confirm("SSE", "log", lambda: log.check(order, statuses))
        self.confirm("SSE", "log beside JSON", lambda: same("the log as JSON", same_log, log.events))


def _stream_head(answer: Response) -> Response:
    if answer.status_code != HTTPStatus.NO_CONTENT:
        same("the status", answer.status_code, HTTPStatus.OK)
        same("the content type", answer.headers["Content-Type"].partition(";")[0], "text/event-stream")
    return answer


def _chunks(answer: Response, pause_s: float) -> Iterator[bytes]:
    for chunk in answer.iter_content(_CHUNK // 16 if pause_s else _CHUNK):
        yield chunk
        gevent.sleep(pause_s)
