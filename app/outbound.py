"""HTTP to addresses that callers name: only where the operator means us to go, and never along a redirect."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, TypeVar

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

    def reach(self, call: Callable[[Session], T], *, limit_s: float) -> T:
        """Make the call in the first session that lets it through. Raises RefusedAddress, or what the call raises.

        `limit_s` bounds the whole call: a receiver that sends a byte now and then resets every other timeout. The
        connections are then shut down under the call, which ends it with an error of requests, also where half of an
        answer looks like a whole one.
        """
        with _limited(limit_s):
            return self._reach(call)

    def _reach(self, call: Callable[[Session], T]) -> T:
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
        raise RefusedAddress(f"{refusal}; an operator can let networks be reached by PLANPAINT_WEBHOOK_ALLOW")


def _session(policy: Policy) -> Session:
    session = Session(policy=policy)
    session.trust_env = False
    # One connection a call, so that the time limit knows each call's own.
    session.headers.update({"user-agent": "planpaint/1", "connection": "close"})
    for scheme in ("http://", "https://"):
        manager = session.adapters[scheme].poolmanager
        manager.pool_classes_by_scheme = {name: _noting(pool) for name, pool in manager.pool_classes_by_scheme.items()}
    return session


class _Sockets(threading.local):
    """The sockets that the call of this thread has opened; None outside of a call."""

    opened: list[socket.socket] | None = None


_SOCKETS = _Sockets()


def _noting(pool: Any) -> Any:  # noqa: ANN401 - urllib3's classes, made at run time
    """The same pool class with connections that note their sockets."""

    class Connection(pool.ConnectionCls):  # type: ignore[misc]
        def _new_conn(self) -> socket.socket:
            found: socket.socket = super()._new_conn()
            if _SOCKETS.opened is not None:
                _SOCKETS.opened.append(found)
            return found

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    opened: list[socket.socket] = []
    _SOCKETS.opened = opened
    late = threading.Event()

    def end() -> None:
        late.set()
        _shut_down(opened)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
        if late.is_set():
            raise requests.exceptions.ReadTimeout(f"no whole answer within {limit_s} s")
    finally:
        timer.cancel()
        _SOCKETS.opened = None


def _shut_down(opened: list[socket.socket]) -> None:
    for each in opened:
        try:
            # Not close(): the thread that reads would not wake up from it. TLS wraps the same descriptor.
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def _cause(error: BaseException | None) -> SSRFGuardError | None:
    while error is not None and not isinstance(error, SSRFGuardError):
        error = error.__cause__ or error.__context__
    return error
