"""Celery's Redis transport with a look at each message first (one that is no hint of ours goes no further), and a way
to the front of the queue.

Celery itself refuses pickles, but other junk ends its worker, and some of it then waits in the queue for the next one.
"""

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import structlog
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as base
from kombu.utils.json import dumps

log = structlog.get_logger(__name__)

#: The scheme of broker URLs that names this transport.
SCHEME = "planpaintredis"
TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"

#: The one task that there is.
TASK = "planpaint.paint"
#: A message with this header goes in front of all that wait.
FIRST = "planpaint-first"
#: Called with the reason and the text of a refused message; given as the transport option of this name.
REFUSED = "refused"
Refused = Callable[[str, str], object]


class Channel(base.Channel):  # type: ignore[misc]
    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:  # noqa: ANN401 - kombu's own
        if not message["headers"].get(FIRST):
            super()._put(queue, message, **options)
            return
        with self.conn_or_acquire() as client:
            client.rpush(queue, dumps(message))

    def _brpop_read(self, **options: Any) -> bool | None:  # noqa: ANN401 - kombu's own
        try:
            done: bool | None = super()._brpop_read(**options)
        except json.JSONDecodeError as error:
            self.connection.refuse("the message is not JSON", error.doc)
            return True
        return done


class Transport(base.Transport):  # type: ignore[misc]
    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:  # noqa: ANN401 - whatever JSON may be
        try:
            check(message)
        except ValueError as error:
            self.refuse(str(error), json.dumps(message))
        else:
            super()._deliver(message, queue)

    def refuse(self, reason: str, text: str) -> None:
        """Drop a message that has been popped, and tell of it."""
        log.warning("dit_message_refused", reason=reason)
        tell: Refused | None = self.client.transport_options.get(REFUSED)
        if tell is None:
            return
        try:
            tell(reason, text)
        except Exception as error:  # the worker must go on for the next message
            log.warning("dit_message_not_buried", error=type(error).__name__)


def check(message: Any) -> None:  # noqa: ANN401 - whatever JSON may be
    """Raises ValueError, saying why, for a message that is not a task of keyword arguments in JSON."""
    if not isinstance(message, dict):
        raise ValueError("the message is not an object")
    if message.get("content-type") != "application/json":
        raise ValueError(f"its content type is {str(message.get('content-type'))[:80]}, not application/json")
    headers, properties = message.get("headers"), message.get("properties")
    if not isinstance(headers, dict) or headers.get("task") != TASK or "id" not in headers:
        raise ValueError("its headers do not name our task")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_tag"), str):
        raise ValueError("its properties hold no delivery tag")
    place = properties.get("delivery_info")
    if not isinstance(place, dict) or not all(isinstance(place.get(name), str) for name in ("exchange", "routing_key")):
        raise ValueError("its properties hold no delivery info")
    try:
        body = message["body"]
        args, values, _ = json.loads(b64decode(body) if properties.get("body_encoding") == "base64" else body)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("its body is not the JSON of a task") from error
    if args != [] or not isinstance(values, dict):
        raise ValueError("its body holds other arguments than a task's keywords")
