"""One POST to a caller's receiver."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import requests
from ssrfguard.requests import Session

from app.outbound import Outbound, RefusedAddress

_LONGEST_WISH_S = 86_400


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to. `status` is None when no answer came; `final`: do not try again.

    `retry_after_s`: the receiver's own wish, 0 without one.
    """

    delivered: bool
    status: int | None = None
    error: str = ""
    final: bool = False
    retry_after_s: float = 0.0


class WebhookSender:
    def __init__(self, outbound: Outbound, *, timeout_s: float) -> None:
        self._outbound = outbound
        self._timeout_s = timeout_s

    def send(self, url: str, headers: dict[str, str], body: str) -> Outcome:
        try:
            # Twice the timeout for connecting, sending and the head of an answer, however slowly that comes.
            return self._outbound.reach(
                lambda session: self._post(session, url, headers, body), limit_s=2 * self._timeout_s
            )
        except RefusedAddress as refusal:
            return Outcome(False, error=f"refused: {refusal}", final=True)
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            return Outcome(False, error=type(error).__name__, final=True)
        except requests.exceptions.RequestException as error:
            return Outcome(False, error=type(error).__name__)

    def _post(self, session: Session, url: str, headers: dict[str, str], body: str) -> Outcome:
        # The answer's body is never read: it may be endless, and it is nobody's business.
        with session.post(
            url,
            data=body.encode(),
            headers=headers,
            timeout=(min(5.0, self._timeout_s), self._timeout_s),
            allow_redirects=False,
            stream=True,
        ) as response:
            status, wish = response.status_code, response.headers.get("retry-after")
        if 200 <= status < 300:
            return Outcome(True, status=status)
        error = f"HTTP {status}, and redirects are not followed" if 300 <= status < 400 else f"HTTP {status}"
        return Outcome(False, status=status, error=error, final=status == 410, retry_after_s=_seconds(wish))


def _seconds(retry_after: str | None) -> float:
    """Retry-After as seconds from now, at most a day; both of its forms, and 0 for anything else."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal() and retry_after.isascii():
        return float(min(int(retry_after.strip()[:9]), _LONGEST_WISH_S))
    try:
        at = parsedate_to_datetime(retry_after)
        wish = (at - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return 0.0
    return min(max(wish, 0.0), _LONGEST_WISH_S)
