"""Clients that send what they must not, leave, come twice, change their minds, or read slowly."""

import json
import random
import secrets
import socket
import ssl
from dataclasses import replace
from itertools import cycle
from urllib.parse import urlsplit

import gevent
from locust import between, task
from requests import Response

from loadtest import checks
from loadtest.asking import said
from loadtest.checks import expect, same
from loadtest.event_log import EventLog
from loadtest.users import ServiceUser

#: More than a body may have by default (1 MiB).
_HUGE = 2 * 1024 * 1024
_JSON = {"Content-Type": "application/json"}


class NonsenseClient(ServiceUser):
    """Nothing that is refused here may be queued."""

    weight = 1
    wait_time = between(0.5, 2.0)

    @task
    def misbehave(self) -> None:
        next(_NONSENSE)(self)

    def send_nonsense(self) -> None:
        """Broken, unknown, wrong, and of another type."""
        body = replace(self.session.book.draw(), number="refused").body()
        broken = json.dumps(body)[:-1]
        xml = {"Content-Type": "application/xml"}
        self._refused(400, "bad_request", "broken JSON", data=broken, headers=_JSON)
        self._refused(422, "invalid_input", "no object", json=[body], pointer="")
        self._refused(422, "invalid_input", "unknown field", json=body | {"colour": "red"}, pointer="/colour")
        self._refused(422, "invalid_input", "wrong value", json=body | {"n": 11}, pointer="/n")
        self._refused(422, "invalid_input", "wrong type", json=body | {"steps": "4"}, pointer="/steps")
        self._refused(415, "unsupported_media_type", "content type", data="<a/>", headers=xml)

    def send_too_much(self) -> None:
        body = replace(self.session.book.draw(), number="refused", prompt="x" * _HUGE).body()
        self._refused(413, "request_entity_too_large", "huge body", json=body)

    def ask_for_the_unknown(self) -> None:
        for job_id in (f"job_{secrets.token_hex(16)}", f"job_{secrets.token_hex(8)}", "0"):
            for method, path in (
                ("GET", ""),
                ("GET", "/events"),
                ("GET", "/images/0/content"),
                ("POST", "/cancel"),
                ("DELETE", ""),
            ):
                name = f"/v1/jobs/[unknown]{path}"
                self.service.refused(method, f"/v1/jobs/{job_id}{path}", 404, "not_found", name=name)

    def come_without_the_key(self) -> None:
        """Where the service asks for one."""
        if self.session.options.api_key is None:
            return
        order = replace(self.session.book.draw(), number="refused")
        for code, header in (("missing_api_key", ""), ("invalid_api_key", "Bearer planpaint_wrong")):
            headers = {"Authorization": header}
            for method, path, body in (("POST", "/v1/jobs", order.body()), ("GET", "/v1/workers", None)):
                name = f"{path} ({code.replace('_', ' ')})"
                self.service.refused(method, path, 401, code, name=name, headers=headers, json=body)

    def leave_in_the_middle_of_a_request(self) -> None:
        place = urlsplit(self.host or "")
        port = place.port or {"http": 80, "https": 443}[place.scheme]
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((place.hostname or "", port), timeout=10) as connection:
            if place.scheme == "https":
                connection = ssl.create_default_context().wrap_socket(connection, server_hostname=place.hostname)
            connection.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"prompt": '.encode())
            connection.close()
        self.service.ask("GET", "/healthz", lambda answer: same("the status", answer.status_code, 200), name="/healthz")

    def _refused(self, status: int, code: str, what: str, **options: object) -> None:
        self.service.refused("POST", "/v1/jobs", status, code, name=f"/v1/jobs ({what})", **options)


class BadClient(ServiceUser):
    """Its jobs are accepted, and must end as all others."""

    weight = 3

    @task
    def misbehave(self) -> None:
        next(_MISDEEDS)(self)

    def leave_a_stream_and_come_back(self) -> None:
        order = self.session.book.long()
        log = EventLog(self.service.submit(order)["id"], in_order=True)
        while not log.complete and log.newest < order.n:
            self.service.follow(order, log, leave_after=1)
            gevent.sleep(random.random())
        self.service.follow_to_the_end(order, log)
        self.service.check_log(order, log)
        job, _ = self.service.look(order, log.job_id)
        self.service.settle(order, job or {})

    def read_slowly(self) -> None:
        order = self.session.book.draw()
        log = EventLog(self.service.submit(order)["id"], in_order=True)
        self.service.follow_to_the_end(order, log, pause_s=0.05)
        self.service.check_log(order, log)
        job, _ = self.service.look(order, log.job_id)
        self.service.settle(order, job or {})

    def send_the_same_again(self) -> None:
        """Some at once under one key, and then another order under it."""
        order, key = self.session.book.draw(), {"Idempotency-Key": secrets.token_hex(8)}
        sent = [gevent.spawn(self._repeat, order.body(), key) for _ in range(4)]
        gevent.joinall(sent)
        answers = [each.value for each in sent if each.value]
        for job, _ in answers:
            self.session.ledger.accept(job["id"], order)

        def check() -> None:
            same("the answers", len(answers), len(sent))
            same("the jobs of one key", len({job["id"] for job, _ in answers}), 1)
            same("the answers that are no replay", [replayed for _, replayed in answers].count(False), 1)

        self.service.confirm("JOB", "one key, one job", check)
        other = order.body() | {"seed": order.image_seed(1)}
        self.service.refused(
            "POST",
            "/v1/jobs",
            422,
            "idempotency_key_reused",
            name="/v1/jobs (key reused)",
            json=other,
            headers=key,
            pointer="/Idempotency-Key",
        )
        job_id = answers[0][0]["id"]
        self.service.settle(order, self.service.until_ended(order, job_id, wait=3))

    def change_ones_mind(self) -> None:
        """Cancel after any time: what has not ended is canceled, and what has stays."""
        order = self.session.book.long()
        job_id = self.service.submit(order)["id"]
        gevent.sleep(random.choice((0.0, 0.0, 1.0, 3.0)) * random.random())

        def check(answer: Response) -> bool:
            expect(answer.status_code in (200, 202, 409), said(answer))
            if answer.status_code == 409:
                checks.problem(answer.headers["Content-Type"], answer.json(), 409, "conflict")
                return False
            checks.job_record(order, answer.json(), job_id)
            same("the status", answer.json()["status"], "canceled" if answer.status_code == 200 else "canceling")
            return True

        canceled = self.service.ask("POST", f"/v1/jobs/{job_id}/cancel", check, name="/v1/jobs/[id]/cancel")
        job = self.service.until_ended(order, job_id, wait=3)
        self.service.settle(order, job, ("canceled",) if canceled else ("succeeded",))
        log = EventLog(job_id, in_order=True)
        self.service.follow_to_the_end(order, log)
        self.service.check_log(order, log, (job["status"],))

    def _repeat(self, body: dict[str, object], key: dict[str, str]) -> tuple[dict[str, object], bool]:
        """The job, and whether it is a replay."""

        def check(answer: Response) -> tuple[dict[str, object], bool]:
            expect(answer.status_code == 202, said(answer))
            return answer.json(), answer.headers.get("Idempotency-Replayed") == "true"

        return self.service.ask("POST", "/v1/jobs", check, name="/v1/jobs (same key)", json=body, headers=key)


#: By turns among all users of a kind, so that even a short run has some of each.
_NONSENSE = cycle(
    (
        NonsenseClient.send_nonsense,
        NonsenseClient.ask_for_the_unknown,
        NonsenseClient.come_without_the_key,
        NonsenseClient.leave_in_the_middle_of_a_request,
        NonsenseClient.send_too_much,
    )
)
_MISDEEDS = cycle(
    (
        BadClient.change_ones_mind,
        BadClient.leave_a_stream_and_come_back,
        BadClient.send_the_same_again,
        BadClient.read_slowly,
    )
)
