"""One run of the load test: what all of its users share."""

import secrets
from typing import Any

from gevent.pywsgi import WSGIServer
from locust.env import Environment

from loadtest import pictures
from loadtest.ledger import Ledger
from loadtest.options import Options
from loadtest.orders import OrderBook
from loadtest.receiver import Receiver


class Session:
    """`run` marks the run's jobs in the service, which may have others."""

    def __init__(self, environment: Environment) -> None:
        self.options = Options.of(environment)
        self.run = secrets.token_hex(4)
        self.book = OrderBook(self.run, secrets.randbits(32))
        self.ledger = Ledger()
        self.gallery = pictures.Gallery()
        self.receiver = Receiver(self._webhook)
        self._environment = environment
        if self.options.judge:
            # It takes a moment, which no request is to be measured by.
            pictures.load_judge()
        self._server: WSGIServer | None = None

    @property
    def receiver_url(self) -> str:
        """Where the service sends our webhooks. The server begins with the first who asks."""
        host = self.options.receiver_bind[0]
        if self._server is None:
            self._server = WSGIServer(self.options.receiver_bind, self.receiver, log=None)
            self._server.start()
        return self.options.receiver_url or f"http://{host}:{self._server.server_port}/"

    def report(self, kind: str, name: str, ms: float | None, wrong: Exception | None, *, length: int = 0) -> None:
        """A line of Locust's statistics for what is no single request. `ms`: None for what takes no time."""
        self._environment.events.request.fire(
            request_type=kind, name=name, response_time=ms, response_length=length, exception=wrong, context={}
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(timeout=1)
            self._server = None

    def _webhook(self, kind: str, age_ms: float, length: int, wrong: Exception | None) -> None:
        self.ledger.webhooks += wrong is None
        self.report("WEBHOOK", kind, age_ms, wrong, length=length)


class Sessions:
    """The session of each environment; Locust may begin several runs one after the other."""

    def __init__(self) -> None:
        self._current: Session | None = None

    def begin(self, environment: Environment, **_: Any) -> None:  # noqa: ANN401 - Locust's events may grow
        self._current = Session(environment)

    @property
    def current(self) -> Session:
        if self._current is None:
            raise RuntimeError("no run has begun")
        return self._current


sessions = Sessions()
