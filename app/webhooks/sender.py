"""One POST to a caller's receiver, to no address that the operator has not meant to be reached."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

import requests
from ssrfguard import AddressTable, Block, Policy, Reach, SSRFGuardError
from ssrfguard.requests import Session

_EVERYWHERE = AddressTable(
    tuple(Block(ip_network(cidr), "not in PLANPAINT_WEBHOOK_ALLOW", "", Reach.DENIED) for cidr in ("0.0.0.0/0", "::/0"))
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt came to. `status` is None when no answer came; `final`: do not try again."""

    delivered: bool
    status: int | None = None
    error: str = ""
    final: bool = False


class WebhookSender:
    """Public receivers by https alone; the operator's networks by http too and on any port. Never a redirect."""

    def __init__(self, allowed: tuple[IPv4Network | IPv6Network, ...], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        public = Policy(allowed_schemes=frozenset({"https"}), allowed_ports=frozenset({443, 8443}))
        policies = [public]
        if allowed:
            own = Policy(
                denied_networks=_EVERYWHERE, allowed_networks=allowed, allowed_ports=frozenset(range(1, 65536))
            )
            policies.insert(0, own)
        self._sessions = [_session(policy) for policy in policies]

    def send(self, url: str, headers: dict[str, str], body: str) -> Outcome:
        refusal = ""
        for session in self._sessions:
            try:
                return self._post(session, url, headers, body)
            except SSRFGuardError as error:
                refusal = str(error)
            except requests.exceptions.RequestException as error:
                blocked = _cause(error)
                if blocked is None:
                    return Outcome(False, error=type(error).__name__)
                refusal = str(blocked)
        return Outcome(False, error=f"refused: {refusal}", final=True)

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


def _session(policy: Policy) -> Session:
    session = Session(policy=policy)
    session.trust_env = False
    session.headers["user-agent"] = "planpaint-webhooks/1"
    return session


def _cause(error: BaseException | None) -> SSRFGuardError | None:
    while error is not None and not isinstance(error, SSRFGuardError):
        error = error.__cause__ or error.__context__
    return error
