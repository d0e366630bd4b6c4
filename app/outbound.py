"""HTTP to addresses that callers name: only where the operator means us to go, and never along a redirect."""

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TypeVar

import requests
from ssrfguard import AddressTable, Block, Policy, Reach, SSRFGuardError
from ssrfguard.requests import Session

T = TypeVar("T")

_EVERYWHERE = AddressTable(
    tuple(Block(ip_network(cidr), "not in PLANPAINT_WEBHOOK_ALLOW", "", Reach.DENIED) for cidr in ("0.0.0.0/0", "::/0"))
)


class RefusedAddress(Exception):
    """The address is not one that may be reached; the message says by which rule."""


class Outbound:
    """Public hosts by https alone; the operator's networks by http too and on any port.

    Each session connects to the very address that it has checked, so a name cannot change its mind in between.
    """

    def __init__(self, allowed: tuple[IPv4Network | IPv6Network, ...]) -> None:
        policies = [Policy(allowed_schemes=frozenset({"https"}), allowed_ports=frozenset({443, 8443}))]
        if allowed:
            own = Policy(
                denied_networks=_EVERYWHERE, allowed_networks=allowed, allowed_ports=frozenset(range(1, 65536))
            )
            policies.insert(0, own)
        self._sessions = [_session(policy) for policy in policies]

    def reach(self, call: Callable[[Session], T]) -> T:
        """Make the call in the first session that lets it through. Raises RefusedAddress, or what the call raises."""
        refusal = ""
        for session in self._sessions:
            try:
                return call(session)
            except SSRFGuardError as error:
                refusal = str(error)
            except requests.exceptions.RequestException as error:
                blocked = _cause(error)
                if blocked is None:
                    raise
                refusal = str(blocked)
        raise RefusedAddress(refusal)


def _session(policy: Policy) -> Session:
    session = Session(policy=policy)
    session.trust_env = False
    session.headers["user-agent"] = "planpaint/1"
    return session


def _cause(error: BaseException | None) -> SSRFGuardError | None:
    while error is not None and not isinstance(error, SSRFGuardError):
        error = error.__cause__ or error.__context__
    return error
