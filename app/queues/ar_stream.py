"""The AR streams: hints that an image waits for its plan, read in groups by any number of AR workers.

There is one stream for each priority, and one that is read before them: an image that a worker has lost or given back
has waited its turn. Realtime goes before batch, but every fourth admission is offered to batch first, so that neither
waits for ever while the other one is full. Within a stream keys take turns, which the scripts see to that fill it
(app/store/scripts/prelude.lua).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from redis.exceptions import ResponseError

from app import keys
from app.connect import Client, translated
from app.domain.messages import SCHEMA, ImageRef

log = structlog.get_logger(__name__)

#: One admission of so many goes to batch first.
BATCH_EVERY = 4


@dataclass(frozen=True, slots=True)
class ArHint:
    """A stream's entry, and the image that it names. `alone`: it must be planned with nothing else in the process."""

    stream: str
    entry: str
    ref: ImageRef
    alone: bool = False


class ArStream:
    """Consumer-group reads. The ack of a good hint is part of the script that moves its image."""

    def __init__(self, client: Client, consumer: str, *, refused: Callable[[str, str], object] | None = None) -> None:
        """`refused` is told the reason and the text of entries that are no hints."""
        self._client = client
        self._consumer = consumer
        self._refused = refused
        self._admitted = 0

    def ensure_groups(self) -> None:
        with translated():
            for stream in keys.AR_STREAMS:
                try:
                    self._client.xgroup_create(stream, keys.AR_GROUP, id="0", mkstream=True)
                except ResponseError as error:
                    if not str(error).startswith("BUSYGROUP"):
                        raise

    def read(self, count: int) -> list[ArHint]:
        """Up to `count` new hints, at once."""
        hints = self._read({keys.AR_RETURNED: ">"}, count, None)
        batch_turns = (self._admitted % BATCH_EVERY + count - len(hints)) // BATCH_EVERY
        if batch_turns:
            hints += self._read({keys.AR_BATCH: ">"}, batch_turns, None)
        for stream in (keys.AR_REALTIME, keys.AR_BATCH):
            if len(hints) < count:
                hints += self._read({stream: ">"}, count - len(hints), None)
        self._admitted += len(hints)
        return hints

    def wait(self, block_ms: int) -> list[ArHint]:
        """Wait for work: the first new hint of each stream, or none after block_ms.

        The client's socket timeout must be longer than block_ms.
        """
        return self._read(dict.fromkeys(keys.AR_STREAMS, ">"), 1, block_ms)

    def _read(self, streams: dict[str, str], count: int, block_ms: int | None) -> list[ArHint]:
        with translated():
            try:
                reply = self._client.xreadgroup(keys.AR_GROUP, self._consumer, streams, count=count, block=block_ms)
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                # A server that lost its data; the records are gone with the group, so there is nothing to read.
                self.ensure_groups()
                return []
        entries = [
            (stream.decode(), entry.decode(), fields) for stream, found in reply or () for entry, fields in found
        ]
        return [hint for each in entries if (hint := self._parse(*each))]

    def _parse(self, stream: str, entry: str, fields: dict[bytes, bytes]) -> ArHint | None:
        try:
            ref = ImageRef(fields[b"job"].decode(), int(fields[b"index"]))
            schema = int(fields[b"schema"])
            if schema < 1:
                raise ValueError(f"no schema {schema} has ever been")
        except (KeyError, ValueError) as error:
            log.warning("ar_hint_malformed", entry=entry, fields=sorted(repr(name) for name in fields))
            if self._refused is not None:
                text = json.dumps({name.decode("utf-8", "replace"): repr(value) for name, value in fields.items()})
                self._refused(f"it is no hint: {type(error).__name__}", text)
            self._drop(stream, entry)
            return None
        if schema > SCHEMA:
            # The sweeper hints the image again, and a newer worker will take it.
            log.warning("ar_hint_too_new", entry=entry, schema=schema)
            return None
        return ArHint(stream, entry, ref, alone=b"alone" in fields)

    def drop(self, hint: ArHint) -> None:
        """Forget a hint that is old: its image is done, canceled, somebody's, or hinted anew."""
        self._drop(hint.stream, hint.entry)

    def _drop(self, stream: str, entry: str) -> None:
        with translated():
            self._client.xack(stream, keys.AR_GROUP, entry)
            self._client.xdel(stream, entry)

    def leave(self) -> None:
        """Take this consumer off the groups, unless entries are pending on it: those would never be read again."""
        with translated():
            for stream in keys.AR_STREAMS:
                if not self._client.xpending_range(stream, keys.AR_GROUP, "-", "+", 1, self._consumer):
                    self._client.xgroup_delconsumer(stream, keys.AR_GROUP, self._consumer)

    def forget_idle_consumers(self, idle_ms: int) -> None:
        """Remove consumers of workers killed long ago, with entries that their images have outlived."""
        with translated():
            for stream in keys.AR_STREAMS:
                for consumer in self._client.xinfo_consumers(stream, keys.AR_GROUP):
                    if consumer["idle"] > idle_ms:
                        self._forget(stream, consumer["name"].decode())

    def _forget(self, stream: str, consumer: str) -> None:
        while pending := self._client.xpending_range(stream, keys.AR_GROUP, "-", "+", 100, consumer):
            for entry in pending:
                self._drop(stream, entry["message_id"].decode())
        self._client.xgroup_delconsumer(stream, keys.AR_GROUP, consumer)
