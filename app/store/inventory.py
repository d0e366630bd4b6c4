"""What is in the store, raw: for those who check that its parts agree."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from app import keys
from app.connect import Client, translated
from app.domain.job import ANYBODY, Priority
from app.store.scripts import Scripts

_IMAGE_FIELDS = (
    "state",
    "fence",
    "owner",
    "entry",
    "returned",
    "ar_attempts",
    "dit_attempts",
    "prior_height",
    "object_key",
    "bytes",
    "sha256",
    "thumbnail_key",
    "error_code",
    "completed_at",
)
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class ImageView:
    """One image and every place that names it. `record` is empty when there is none; scores are None where it is not.

    `hinted`: the stream entry that its record names exists. `held`: it is in its key's line; `in_turn`: it is hinted.
    """

    record: dict[str, str]
    due: float | None
    hinted: bool
    waiting: dict[str, bool]
    held: bool
    in_turn: bool


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and every place that names it, read at one moment. `now`: server ms; events: (sequence, type, index)."""

    id: str
    now: int
    record: dict[str, str]
    images: tuple[ImageView, ...]
    events: tuple[tuple[int, str, str], ...]
    undelivered: int
    expiry: float | None
    listed: bool
    gone: bool


class Inventory:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._scripts = Scripts(client)

    def now(self) -> int:
        with translated():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def names(self, start: str = keys.PREFIX) -> Iterator[str]:
        """Every key that begins so, each once. Keys that come or go meanwhile may be missing."""
        seen = set()
        with translated():
            for raw in self._client.scan_iter(match=f"{start}*", count=_CHUNK):
                if raw not in seen:
                    seen.add(raw)
                    yield raw.decode("utf-8", "replace")

    def exist(self, names: list[str]) -> list[bool]:
        return [bool(found) for found in self._many(names, lambda pipe, name: pipe.exists(name))]

    def lifetimes(self, names: list[str]) -> list[int]:
        """ms to live of each key; -1: for ever, -2: it is gone."""
        return self._many(names, lambda pipe, name: pipe.pttl(name))

    def states(self, members: list[str]) -> list[str | None]:
        """The state in each image's record, named "<job>:<index>"."""
        found = self._many(members, lambda pipe, member: pipe.hget(f"{keys.PREFIX}image:{member}", "state"))
        return [None if state is None else state.decode() for state in found]

    def entries(self, members: list[str]) -> list[str | None]:
        """The stream entry that each image's record names."""
        found = self._many(members, lambda pipe, member: pipe.hget(f"{keys.PREFIX}image:{member}", "entry"))
        return [None if entry is None else entry.decode() for entry in found]

    def members(self, name: str) -> Iterator[tuple[str, float]]:
        """Members of a zset with their scores."""
        with translated():
            for member, score in self._client.zscan_iter(name, count=_CHUNK):
                yield member.decode("utf-8", "replace"), score

    def hints(self, stream: str) -> Iterator[tuple[str, dict[str, str]]]:
        """(entry, fields) of an AR stream."""
        start = "-"
        while True:
            with translated():
                found = self._client.xrange(stream, start, "+", count=_CHUNK)
            for entry, fields in found:
                text = {n.decode("utf-8", "replace"): v.decode("utf-8", "replace") for n, v in fields.items()}
                yield entry.decode(), text
            if len(found) < _CHUNK:
                return
            start = f"({found[-1][0].decode()}"

    def pending(self, stream: str) -> list[str]:
        """Entries that a worker has read and not acknowledged; none before the first worker has come."""
        found: list[str] = []
        start = "-"
        try:
            with translated():
                while rows := self._client.xpending_range(stream, keys.AR_GROUP, start, "+", _CHUNK):
                    found += [row["message_id"].decode() for row in rows]
                    start = f"({found[-1]}"
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
        return found

    def tally(self) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """By name: what a count of the records gives, and what the store has counted (see tally.lua)."""
        counted = [keys.DUE, keys.COUNTS, keys.ACTIVE, keys.WAITING_REALTIME, keys.WAITING_BATCH, keys.WAITING_DIT]
        with translated():
            reply = json.loads(
                self._scripts.run("tally", keys=counted, args=[f"{keys.PREFIX}image:", f"{keys.PREFIX}job:"])
            )
        # An empty table is an empty list in cjson.
        return {name: (dict(mine or {}), dict(theirs or {})) for name, (mine, theirs) in reply.items()}

    def job(self, job_id: str) -> JobView | None:
        """None when there is no such job."""
        with translated():
            n, owner, priority, sequence = self._client.hmget(keys.job(job_id), "n", "owner", "priority", "sequence")
        if n is None:
            return None
        owner, priority = (owner or ANYBODY.encode()).decode(), Priority((priority or b"realtime").decode())
        with translated():
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            pipe.hgetall(keys.job(job_id))
            pipe.xrange(keys.events(job_id))
            pipe.zscore(keys.EXPIRY, job_id)
            pipe.zscore(keys.jobs_of(owner), job_id)
            pipe.exists(keys.tombstone(job_id))
            # A job's log has two lines more than it has images; a few more may have been added since it was asked.
            numbers = range(1, max(int(n) + 2, int(sequence or 0)) + 1)
            pipe.zmscore(keys.OUTBOX, [f"{job_id}:{number}" for number in numbers])
            for index in range(int(n)):
                _ask_image(pipe, job_id, index, priority, owner)
            replies = iter(pipe.execute())
        (seconds, microseconds), record, log, expiry, listed, gone, outbox = (next(replies) for _ in range(7))
        if not record:
            return None
        images = [_image(replies) for _ in range(int(n))]
        found = self._hinted(priority, [image.record for image in images])
        return JobView(
            id=job_id,
            now=int(seconds * 1000 + microseconds // 1000),
            record=_text(record),
            images=tuple(
                ImageView(i.record, i.due, hinted, i.waiting, i.held, i.in_turn)
                for i, hinted in zip(images, found, strict=True)
            ),
            events=tuple((int(e.split(b"-")[0]), f[b"type"].decode(), f[b"index"].decode()) for e, f in log),
            undelivered=sum(score is not None for score in outbox),
            expiry=expiry,
            listed=listed is not None,
            gone=bool(gone),
        )

    def _hinted(self, priority: Priority, records: list[dict[str, str]]) -> list[bool]:
        """Whether the stream has the entry that each image's record names."""
        named = [
            (keys.AR_RETURNED if "returned" in record else keys.ar_stream(priority), record["entry"])
            for record in records
            if "entry" in record
        ]
        found = iter(self._many(named, lambda pipe, hint: pipe.xrange(hint[0], hint[1], hint[1])))
        return [bool(next(found)) if "entry" in record else False for record in records]

    def _many(self, names: Sequence[Any], ask: Any) -> list[Any]:  # noqa: ANN401 - a lambda over the client's pipeline
        found: list[Any] = []
        for start in range(0, len(names), _CHUNK):
            with translated():
                pipe = self._client.pipeline(transaction=False)
                for name in names[start : start + _CHUNK]:
                    ask(pipe, name)
                found += pipe.execute()
        return found


def _ask_image(pipe: Client, job_id: str, index: int, priority: Priority, owner: str) -> None:
    member = f"{job_id}:{index}"
    pipe.hmget(keys.image(job_id, index), _IMAGE_FIELDS)
    pipe.zscore(keys.DUE, member)
    for queue in (keys.WAITING_REALTIME, keys.WAITING_BATCH, keys.WAITING_DIT):
        pipe.zscore(queue, member)
    pipe.zscore(keys.line(priority, owner), member)
    pipe.sismember(keys.turn(priority, owner), member)


def _image(replies: Iterator[Any]) -> ImageView:
    record, due, realtime, batch, dit, held, in_turn = (next(replies) for _ in range(7))
    fields = {name: value.decode() for name, value in zip(_IMAGE_FIELDS, record, strict=True) if value is not None}
    waiting = {"realtime": realtime is not None, "batch": batch is not None, "dit": dit is not None}
    return ImageView(fields, due, False, waiting, held is not None, bool(in_turn))


def _text(record: dict[bytes, bytes]) -> dict[str, str]:
    """Fields without the request, which nobody who checks needs to read."""
    return {name.decode(): value.decode() for name, value in record.items() if name != b"request"}
