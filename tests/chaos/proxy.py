"""A small TCP proxy that hurts a link: passes on, delays, goes silent, resets, or loses one answer."""

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType


class Proxy:
    """Use as a context manager; `mode` may change at any time and holds for open connections, too.

    "pass"; "silent": bytes of both sides vanish and the connections stay open, as behind a router that died; "reset".
    `delay_s`: each piece waits so long. `lose_answers`: so many next pieces from the server vanish, and their
    connection is reset, as when a reply is lost on the way. `cut_request`, `cut_answer`: the next connection that sends
    more than so many bytes this way is reset behind them.
    """

    def __init__(self, port: int) -> None:
        self.mode = "pass"
        self.delay_s = 0.0
        self.lose_answers = 0
        self.cut_request: int | None = None
        self.cut_answer: int | None = None
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        self._listener.close()
        self.reset()

    def reset(self) -> None:
        """Every open connection, with RST."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            self._end(pair)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(pair, source, sink, answers), daemon=True).start()

    def _pump(self, pair: tuple[socket.socket, socket.socket], source, sink, answers: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.mode == "silent":
                    continue
                if self.mode == "reset" or (answers and self._loses()):
                    break
                time.sleep(self.delay_s)
                limit = self.cut_answer if answers else self.cut_request
                if limit is not None and passed + len(data) > limit:
                    sink.sendall(data[: limit - passed])
                    time.sleep(0.1)  # a reset may overtake what is on its way
                    self.cut_request = self.cut_answer = None
                    break
                passed += len(data)
                sink.sendall(data)
        with self._lock:
            self._pairs.discard(pair)
        self._end(pair)

    def _loses(self) -> bool:
        with self._lock:
            lost = self.lose_answers > 0
            self.lose_answers -= lost
        return lost

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        for each in pair:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            each.close()
