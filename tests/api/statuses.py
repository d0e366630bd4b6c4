"""Which answers are documented, and which have been given."""

import re
from types import TracebackType
from typing import Any, Self

from flask import Flask, Response, request, request_finished

#: A method, a path as the description writes it, and a status.
Answer = tuple[str, str, str]


def documented(app: Flask) -> set[Answer]:
    spec = app.test_client().get("/openapi.json").get_json()
    return {
        (method.upper(), path, status)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
        for status in operation["responses"]
    }


class Recorder:
    """Notes every answer that any application of this process gives while it is entered."""

    def __init__(self) -> None:
        self.seen: set[Answer] = set()

    def __enter__(self) -> Self:
        request_finished.connect(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        request_finished.disconnect(self._note)

    def _note(self, sender: Flask, response: Response, **_: Any) -> None:
        if request.url_rule is not None and request.method not in ("HEAD", "OPTIONS"):
            path = re.sub(r"<(?:int:)?(\w+)>", r"{\1}", request.url_rule.rule)
            self.seen.add((request.method, path, str(response.status_code)))
