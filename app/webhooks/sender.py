"""One POST to a caller's receiver."""

from dataclasses import dataclass

import requests
from ssrfguard.requests import Session

from app.outbound import Outbound, RefusedAddress


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to. `status` is None when no answer came; `final`: do not try again."""

    delivered: bool
    status: int | None = None
    error: str = ""
    final: bool = False


class WebhookSender:
    def __init__(self, outbound: Outbound, *, timeout_s: float) -> None:
        self._outbound = outbound
        self._timeout_s = timeout_s

    def send(self, url: str, headers: dict[str, str], body: str) -> Outcome:
        try:
            return self._outbound.reach(lambda session: self._post(session, url, headers, body))
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
            status = response.status_code
        if 200 <= status < 300:
            return Outcome(True, status=status)
        return Outcome(False, status=status, error=f"HTTP {status}", final=status == 410)
