"""What can be read of jobs without changing them."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app import keys
from app.connect import Client, translated
from app.domain.job import ANYBODY, Job
from app.domain.messages import Event, ImageRef
from app.domain.prior import Plan, PriorTokens, unpack_all
from app.domain.sizes import Grid
from app.errors import Gone, NotFound, RefusedInput
from app.store.records import IMAGE_FIELDS, load_job

#: Jobs that one request looks at when it filters; a page may then be short, and its cursor goes on from there.
_SCANNED = 300
_CHUNK = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first. `cursor`: where the next page begins; None after the last one."""

    jobs: tuple[Job, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a list holds. `created_after`: server ms, exclusive."""

    statuses: frozenset[str] = frozenset()
    created_after: int | None = None

    def fits(self, job: Job) -> bool:
        return not self.statuses or job.status.value in self.statuses


@dataclass(frozen=True, slots=True)
class Server:
    """The Redis or Valkey behind a store. `compatible`: the version of Redis that it stands for."""

    name: str
    version: str
    compatible: str
    eviction: str
    durable: bool


class JobReads:
    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, job_id: str, *, owner: str | None = None, even_gone: bool = False) -> Job:
        """One job. Raises NotFound, or Gone after its removal; to any `owner` but its own it has never been there.

        `even_gone`: also a removed one whose events are still to be sent.
        """
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.hget(keys.job(job_id), "n")
            pipe.get(keys.tombstone(job_id))
            n, tombstone = pipe.execute()
        if tombstone is not None and not (even_gone and n):
            raise _gone(job_id, tombstone, owner)
        if n is None:
            raise NotFound(f"no job {job_id}")
        found = self._read({job_id: int(n)})
        if not found:
            # Removed between the two reads.
            return self.get(job_id, owner=owner, even_gone=even_gone)
        if owner not in (None, found[0].owner):
            raise NotFound(f"no job {job_id}")
        return found[0]

    def _read(self, sizes: dict[str, int]) -> list[Job]:
        """Jobs whose number of images is known, those that are gone left out.

        In one transaction, since a job that is done by its images must be done by its own record, too.
        """
        with translated():
            pipe = self._client.pipeline(transaction=True)
            for job_id, n in sizes.items():
                pipe.hgetall(keys.job(job_id))
                for index in range(n):
                    pipe.hmget(keys.image(job_id, index), IMAGE_FIELDS)
            replies = iter(pipe.execute())
        found = []
        for job_id, n in sizes.items():
            fields, images = next(replies), [next(replies) for _ in range(n)]
            if fields:
                found.append(load_job(job_id, fields, images))
        return found

    def version(self, job_id: str) -> int:
        """Larger after each change of the job. Raises NotFound or Gone."""
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.hget(keys.job(job_id), "version")
            pipe.get(keys.tombstone(job_id))
            version, tombstone = pipe.execute()
        if tombstone is not None:
            raise _gone(job_id, tombstone)
        if version is None:
            raise NotFound(f"no job {job_id}")
        return int(version)

    def plan(self, ref: ImageRef) -> Plan | None:
        """The stored plan; None while AR has not finished. Raises NotFound for an unknown image."""
        with translated():
            state, packed, height, width, condition = self._client.hmget(
                keys.image(ref.job_id, ref.index), "state", "prior", "prior_height", "prior_width", "condition"
            )
        if state is None:
            raise NotFound(f"no image {ref.index} in job {ref.job_id}")
        if packed is None:
            return None
        return Plan(PriorTokens.unpack(Grid(int(height), int(width)), packed), unpack_all(condition))

    # --- the event log

    def events(self, job_id: str, after: int = 0) -> list[Event]:
        """The job's events with a larger sequence, in order. A log holds two events more than its job has images."""
        with translated():
            entries = self._client.xrange(keys.events(job_id), f"({after}-0", "+")
        return [_event(job_id, entry, fields) for entry, fields in entries]

    def event(self, job_id: str, sequence: int) -> Event | None:
        return next((event for event in self.events(job_id, sequence - 1) if event.sequence == sequence), None)

    # --- lists

    def page(self, owner: str, *, limit: int, cursor: str | None = None, only: Filter | None = None) -> Page:
        """The owner's jobs, newest first. New ones do not move the pages that follow a cursor."""
        only = only or Filter()
        found: list[Job] = []
        place, scanned = _place(cursor), 0
        while scanned < _SCANNED:
            ids = self._ids(owner, place, only.created_after, max(_CHUNK, limit + 1))
            for job in self.many([job_id for _, job_id in ids]):
                if only.fits(job):
                    found.append(job)
                if len(found) > limit:
                    last = found[limit - 1]
                    return Page(tuple(found[:limit]), _cursor((last.created_at, last.id)))
            scanned += len(ids)
            if len(ids) < max(_CHUNK, limit + 1):
                return Page(tuple(found), None)
            place = ids[-1]
        return Page(tuple(found), _cursor(place) if place else None)

    def _ids(
        self, owner: str, place: tuple[int, str] | None, created_after: int | None, count: int
    ) -> list[tuple[int, str]]:
        """The next ids behind a place, by creation and then id, both falling."""
        least = "-inf" if created_after is None else f"({created_after}"
        ids: list[tuple[int, str]] = []
        offset = 0
        while len(ids) < count:
            with translated():
                # Several jobs may be of one millisecond: those before the place are read once more and left out.
                rows = self._client.zrange(
                    keys.jobs_of(owner),
                    place[0] if place else "+inf",
                    least,
                    desc=True,
                    byscore=True,
                    offset=offset,
                    num=count,
                    withscores=True,
                )
            pairs = [(int(score), member.decode()) for member, score in rows]
            ids += [pair for pair in pairs if place is None or pair < place]
            offset += len(rows)
            if len(rows) < count:
                break
        return ids[:count]

    def many(self, job_ids: Sequence[str]) -> list[Job]:
        """Those of these jobs that there are, in order."""
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for job_id in job_ids:
                pipe.hget(keys.job(job_id), "n")
            sizes = zip(job_ids, pipe.execute(), strict=True)
        return self._read({job_id: int(n) for job_id, n in sizes if n is not None})

    # --- observers

    def stats(self) -> dict[str, int]:
        """Totals since the store was made, and what waits now."""
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.hgetall(keys.STATS)
            for stream in keys.AR_STREAMS:
                pipe.xlen(stream)
            pipe.llen(keys.DIT_LIST)
            pipe.zcard(keys.DUE)
            pipe.zcard(keys.OUTBOX)
            pipe.zcard(keys.TRASH)
            totals, *ar_hints, dit_hints, active, outbox, trash = pipe.execute()
        waiting = {
            "ar_hints": sum(ar_hints),
            "dit_hints": dit_hints,
            "images_active": active,
            "webhooks_waiting": outbox,
            "trash": trash,
        }
        return {name.decode(): int(value) for name, value in totals.items()} | waiting

    def server(self) -> Server:
        with translated():
            found = self._client.info("everything")
        is_valkey = "valkey_version" in found
        return Server(
            name="valkey" if is_valkey else "redis",
            version=str(found["valkey_version" if is_valkey else "redis_version"]),
            compatible=str(found["redis_version"]),
            eviction=str(found["maxmemory_policy"]),
            durable=bool(found["aof_enabled"]),
        )

    def ping(self) -> None:
        with translated():
            self._client.ping()


def _gone(job_id: str, tombstone: bytes, owner: str | None = None) -> NotFound:
    """What a tombstone says, "<why> <owner>", to this owner or, with None, to us."""
    why, _, whose = tombstone.decode().partition(" ")
    if owner not in (None, whose or ANYBODY):
        return NotFound(f"no job {job_id}")
    return Gone(f"job {job_id} was deleted" if why == "deleted" else f"job {job_id} has expired")


def _event(job_id: str, entry: bytes, fields: dict[bytes, bytes]) -> Event:
    index = fields[b"index"]
    return Event(
        job_id=job_id,
        sequence=int(entry.split(b"-")[0]),
        type=fields[b"type"].decode(),
        timestamp=int(fields[b"timestamp"]),
        index=int(index) if index else None,
    )


def _cursor(place: tuple[int, str]) -> str:
    return base64.urlsafe_b64encode(f"{place[0]}:{place[1]}".encode()).decode().rstrip("=")


def _place(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        created_at, _, job_id = text.partition(":")
        place = (int(created_at), job_id)
    except (binascii.Error, ValueError) as error:
        raise RefusedInput("cursor", "is not one that this service gave out") from error
    if not 0 <= place[0] < 2**52 or _cursor(place) != cursor:
        raise RefusedInput("cursor", "is not one that this service gave out")
    return place


def pairs_of(values: dict[str, Any]) -> list[Any]:
    """Field and value by turns, as HSET takes them; None is left out."""
    return [part for name, value in values.items() if value is not None for part in (name, value)]
