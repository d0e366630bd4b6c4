"""The receiver of webhooks: a small HTTP server inside the load test that verifies every signature."""

import json
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from loadtest.checks import CheckFailed, expect, same
from loadtest.event_log import EventLog

#: Longest body that is read. Standard Webhooks asks for less than 20 kB.
_MOST_BYTES = 20_000

#: Called with the event's type, ms from the event to us, bytes, and what is wrong with it.
Report = Callable[[str, float, int, Exception | None], None]


class Receiver:
    """A WSGI application. It confirms what is right, and refuses what is not with 400."""

    def __init__(self, report: Report) -> None:
        self.secrets: list[str] = []
        self.logs: dict[str, EventLog] = {}
        self._ids: dict[str, tuple[str, int]] = {}
        self._report = report

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body, kind, age_ms, wrong = b"", "webhook", 0.0, None
        try:
            same("the method of a webhook", environ["REQUEST_METHOD"], "POST")
            same("the content type of a webhook", environ.get("CONTENT_TYPE"), "application/json")
            body = environ["wsgi.input"].read(_MOST_BYTES + 1)
            expect(len(body) <= _MOST_BYTES, f"a webhook has more than {_MOST_BYTES} bytes")
            event = self._verified(environ, body)
            kind = event["type"]
            age_ms = max(0.0, (time.time() - datetime.fromisoformat(event["timestamp"]).timestamp()) * 1000)
            self._take(environ["HTTP_WEBHOOK_ID"], event)
        except CheckFailed as error:
            wrong = error
        except (LookupError, TypeError, ValueError) as error:
            wrong = CheckFailed(f"a webhook is not of the documented form: {error!r}")
        self._report(kind, age_ms, len(body), wrong)
        start_response("400 Bad Request" if wrong else "204 No Content", [])
        return []

    def _verified(self, environ: dict[str, Any], body: bytes) -> dict[str, Any]:
        """The event, when one of the secrets has signed it."""
        names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        headers = {name: environ.get(f"HTTP_{name.upper().replace('-', '_')}", "") for name in names}
        for secret in self.secrets:
            try:
                Webhook(secret).verify(body, headers, json_parse=False)
            except WebhookVerificationError:
                continue
            event: dict[str, Any] = json.loads(body)
            return event
        raise CheckFailed("the signature of a webhook does not verify")

    def _take(self, event_id: str, event: dict[str, Any]) -> None:
        job_id, sequence = event["data"]["job_id"], event["sequence"]
        # It may be here before the answer that names its job.
        self.log(job_id).add(event)
        same(
            f"the event with the id {event_id}", (job_id, sequence), self._ids.setdefault(event_id, (job_id, sequence))
        )

    def log(self, job_id: str) -> EventLog:
        return self.logs.setdefault(job_id, EventLog(job_id, in_order=False))
