"""Requests whose answers are checked while Locust measures them, so that a failed check is the request's failure."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from locust.clients import HttpSession, ResponseContextManager
from locust.exception import RescheduleTask
from requests import Response

from loadtest import checks
from loadtest.checks import CheckFailed, same
from loadtest.session import Session

Result = TypeVar("Result")
#: For connecting and for each read; heartbeats come every 15 s.
_TIMEOUT_S = (10.0, 60.0)


class Abandoned(RescheduleTask):
    """A check failed and is reported: what the client was about makes no sense any more. Locust takes another task."""


class Asker:
    """One caller, with its connection, its key and the run that it belongs to."""

    def __init__(self, http: HttpSession, session: Session) -> None:
        self._http = http
        self.session = session
        self._key = {"Authorization": f"Bearer {session.options.api_key}"} if session.options.api_key else {}

    def ask(
        self,
        method: str,
        path: str,
        check: Callable[[Response], Result],
        *,
        name: str,
        headers: dict[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - those of requests
    ) -> Result:
        """Send one request and check its answer; raises Abandoned when that fails."""
        # The key is the service's alone: a picture's URL leads to another server, and is signed.
        key = self._key if path.startswith("/") else {}
        sent: dict[str, Any] = {"timeout": _TIMEOUT_S, "allow_redirects": False} | options
        with self._http.request(
            method, path, name=name, catch_response=True, headers=key | (headers or {}), **sent
        ) as answer:
            try:
                result = _checked(answer, check)
            except CheckFailed as wrong:
                answer.failure(wrong)
            else:
                answer.success()
                return result
        raise Abandoned

    def confirm(self, kind: str, name: str, check: Callable[[], None], *, since: float | None = None) -> None:
        """Check what came of several requests, as a line of its own. `since`: time.monotonic when it began."""
        wrong = None
        try:
            check()
        except CheckFailed as error:
            wrong = error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            wrong = CheckFailed(f"this is not of the documented form: {error!r}")
        self.session.report(kind, name, None if since is None else (time.monotonic() - since) * 1000, wrong)
        if wrong:
            raise Abandoned

    def refused(self, method: str, path: str, status: int, code: str, *, name: str, **options: Any) -> None:  # noqa: ANN401
        """Ask for what must be refused. `pointer` among the options: the field that the refusal must name."""
        pointer = options.pop("pointer", None)

        def check(answer: Response) -> None:
            same("the status", answer.status_code, status)
            checks.problem(answer.headers["Content-Type"], answer.json(), status, code, pointer)

        self.ask(method, path, check, name=name, **options)


def _checked(answer: ResponseContextManager, check: Callable[[Response], Result]) -> Result:
    if answer.error is not None:
        raise CheckFailed(f"no answer: {type(answer.error).__name__}: {answer.error.__context__!r}")
    try:
        return check(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckFailed(f"{said(answer)}, which is not of the documented form: {error!r}") from error


def said(answer: Response) -> str:
    """What came, in short. A stream is not read: it may go on."""
    kind = answer.headers.get("Content-Type", "no type")
    return f"HTTP {answer.status_code}: {kind if kind.startswith('text/event-stream') else answer.text[:200]}"
