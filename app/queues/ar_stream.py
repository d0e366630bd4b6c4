"""The AR stream: hints that an image waits for its plan, read in groups by any number of AR workers."""

from dataclasses import dataclass

import structlog
from redis.exceptions import ResponseError

from app import keys
from app.connect import Client, translated
from app.domain.messages import SCHEMA, ImageRef

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ArHint:
    """A stream entry: its id, and the image it names."""

    entry: str
    ref: ImageRef


class ArStream:
    """Consumer-group reads. Acks are part of the scripts that move the image, never of this class."""

    def __init__(self, client: Client, consumer: str) -> None:
        self._client = client
        self._consumer = consumer

    def ensure_group(self) -> None:
        with translated():
            try:
                self._client.xgroup_create(keys.AR_STREAM, keys.AR_GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def read(self, count: int, *, block_ms: int | None) -> list[ArHint]:
        """Up to `count` new hints; waits up to block_ms for the first one, or not at all when None.

        The client's socket timeout must be longer than block_ms.
        """
        with translated():
            try:
                reply = self._client.xreadgroup(
                    keys.AR_GROUP, self._consumer, {keys.AR_STREAM: ">"}, count=count, block=block_ms
                )
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                self.ensure_group()
                return []
        entries = [entry for _, stream_entries in reply for entry in stream_entries] if reply else []
        return [hint for entry_id, fields in entries if (hint := self._parse(entry_id.decode(), fields))]

    def _parse(self, entry: str, fields: dict[bytes, bytes]) -> ArHint | None:
        try:
            ref = ImageRef(fields[b"job"].decode(), int(fields[b"index"]))
            schema = int(fields[b"schema"])
        except (KeyError, ValueError):
            log.warning("ar_hint_malformed", entry=entry, fields=sorted(repr(name) for name in fields))
            self._drop(entry)
            return None
        if schema > SCHEMA:
            # The sweeper hints the image again, and a newer worker will take it.
            log.warning("ar_hint_too_new", entry=entry, schema=schema)
            return None
        return ArHint(entry, ref)

    def _drop(self, entry: str) -> None:
        with translated():
            self._client.xack(keys.AR_STREAM, keys.AR_GROUP, entry)
            self._client.xdel(keys.AR_STREAM, entry)

    def leave(self) -> None:
        """Take this consumer off the group, unless entries are still pending on it: those would never be read again."""
        with translated():
            if not self._client.xpending_range(keys.AR_STREAM, keys.AR_GROUP, "-", "+", 1, self._consumer):
                self._client.xgroup_delconsumer(keys.AR_STREAM, keys.AR_GROUP, self._consumer)

    def forget_idle_consumers(self, idle_ms: int) -> None:
        """Remove consumers of killed workers once nothing is pending on them."""
        with translated():
            for consumer in self._client.xinfo_consumers(keys.AR_STREAM, keys.AR_GROUP):
                if consumer["idle"] > idle_ms and consumer["pending"] == 0:
                    self._client.xgroup_delconsumer(keys.AR_STREAM, keys.AR_GROUP, consumer["name"])
