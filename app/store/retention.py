"""How jobs end for good: out of sight, then without objects, in the end without a record."""

from app import keys
from app.connect import Client, translated
from app.domain.job import Job
from app.errors import NotFound
from app.store.reads import JobReads
from app.store.scripts import Scripts

#: Another look at an expired job whose webhook events still wait to be delivered, ms.
_LOOK_AGAIN_MS = 3_600_000
#: A submit that stored files and did not reach its record within this time has failed, ms.
_ABANDONED_MS = 3_600_000


class Retention:
    """`tombstone_ms`: a removed job is known as gone for so long."""

    def __init__(self, client: Client, reads: JobReads, *, tombstone_ms: int) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._reads = reads
        self._tombstone_ms = tombstone_ms

    def delete(self, job_id: str) -> bool:
        """Remove an ended job at once, undelivered events included; False while it has not ended."""
        return self._retire(self._reads.get(job_id), "deleted") != "active"

    def expire(self, job_id: str) -> str:
        """Remove a job whose time is over; returns what was done (see retire.lua)."""
        try:
            job = self._reads.get(job_id, even_gone=True)
        except NotFound:
            with translated():
                self._client.zrem(keys.EXPIRY, job_id)
            return "gone"
        return self._retire(job, "expired")

    def _retire(self, job: Job, why: str) -> str:
        last = len(job.images) + 2
        others = [
            keys.events(job.id),
            *(keys.image(job.id, image.index) for image in job.images),
            *(keys.delivery(job.id, sequence) for sequence in range(1, last + 1)),
        ]
        with translated():
            done = self._scripts.run(
                "retire",
                keys=[
                    keys.job(job.id),
                    keys.tombstone(job.id),
                    keys.EXPIRY,
                    keys.jobs_of(job.owner),
                    keys.TRASH,
                    keys.OUTBOX,
                    keys.CHANGES,
                    keys.DEAD,
                    *others,
                ],
                args=[job.id, why, self._tombstone_ms, _LOOK_AGAIN_MS, job.owner],
            )
        return str(done.decode())

    def expired(self, limit: int) -> list[str]:
        """Jobs whose time is over, by the server's clock."""
        return self._due(keys.EXPIRY, limit)

    # --- objects

    def reserve(self, job_id: str) -> None:
        """Objects of a job are about to be written before its record; without a record they will be removed."""
        with translated():
            self._client.zadd(keys.TRASH, {job_id: self._now() + _ABANDONED_MS})

    def trash(self, limit: int) -> list[str]:
        """Jobs whose objects are to be removed now."""
        return self._due(keys.TRASH, limit)

    def wanted(self, job_id: str) -> bool:
        """Whether the objects belong to a job that can be seen."""
        with translated():
            pipe = self._client.pipeline(transaction=True)
            pipe.exists(keys.job(job_id))
            pipe.exists(keys.tombstone(job_id))
            exists, gone = pipe.execute()
        return bool(exists) and not gone

    def emptied(self, job_id: str) -> None:
        with translated():
            self._client.zrem(keys.TRASH, job_id)

    def postpone(self, job_id: str, ms: int) -> None:
        """The objects could not be removed: try again later."""
        with translated():
            self._client.zadd(keys.TRASH, {job_id: self._now() + ms}, xx=True)

    def _due(self, key: str, limit: int) -> list[str]:
        with translated():
            members = self._client.zrange(key, "-inf", self._now(), byscore=True, offset=0, num=limit)
        return [member.decode() for member in members]

    def _now(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)
