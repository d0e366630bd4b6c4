"""A receiver of webhooks that writes everything down, and that can be made to fail or to refuse connections."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from app.bench.chaos.history import Received

_MOST_BYTES = 100_000


class Receiver:
    """Use as a context manager. `failing` may be set at any time; `refuse` and `listen` by turns."""

    def __init__(self) -> None:
        self.failing = False
        self._received: list[Received] = []
        self._lock = threading.Lock()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Receiver":
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    @property
    def received(self) -> tuple[Received, ...]:
        with self._lock:
            return tuple(self._received)

    def listen(self) -> None:
        """At the same port as before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(min(int(self.headers["Content-Length"]), _MOST_BYTES))
                self.send_response(receiver._take(self.headers["webhook-id"], body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: the history holds it all."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)
        self._thread.start()

    def refuse(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    def _take(self, event_id: str, body: bytes) -> int:
        """The status to answer."""
        confirmed = not self.failing
        with self._lock:
            self._received.append(Received(event_id, hashlib.sha256(body).hexdigest(), confirmed))
        return 204 if confirmed else 500
