"""What must hold between the records and the bucket."""

import hashlib
import time
from collections.abc import Iterator

from app import keys
from app.blobs import BlobStore
from app.errors import ImageFailed
from app.invariants.jobs import Found
from app.store.inventory import Inventory, JobView

#: Objects that are looked at when only a sample is wanted, and keys that are then listed.
SAMPLE, LISTED = 50, 10_000
#: An object of a job that is gone may still be removed, or its job not be written yet, seconds.
ORPHAN_S = 3600.0


def committed(job: JobView) -> Iterator[tuple[str, str, int, str]]:
    """(subject, key, bytes or -1, SHA-256 or "") of every object that the job's images point to."""
    for index, image in enumerate(job.images):
        record, subject = image.record, f"{job.id}:{index}"
        if "object_key" in record:
            yield subject, record["object_key"], int(record.get("bytes", -1)), record.get("sha256", "")
        if "thumbnail_key" in record:
            yield subject, record["thumbnail_key"], -1, ""


def whole(blobs: BlobStore, subject: str, key: str, size: int, sha256: str, *, read: bool) -> Found:
    """The object is there, with its size; with `read` every byte is compared."""
    found = blobs.size(key)
    if found is None:
        yield subject, f"its object {key} is not in the bucket"
    elif size >= 0 and found != size:
        yield subject, f"its object {key} has {found} bytes, and should have {size}"
    elif read and sha256:
        try:
            digest = hashlib.sha256(blobs.get(key)).hexdigest()
        except ImageFailed as failure:
            yield subject, f"its object {key} cannot be read: {failure.message}"
        else:
            if digest != sha256:
                yield subject, f"its object {key} has other bytes than were committed"


def orphans(blobs: BlobStore, store: Inventory, *, limit: int | None, older_s: float = ORPHAN_S) -> Found:
    """Objects under jobs/ whose job is gone, and which nothing is going to remove."""
    now = time.time()
    old: dict[str, str] = {}
    for number, (key, modified) in enumerate(blobs.walk("jobs/")):
        if limit is not None and number >= limit:
            break
        job_id = key.split("/")[1]
        if now - modified > older_s:
            old.setdefault(job_id, key)
    job_ids = list(old)
    trash = {job_id for job_id, _ in store.members(keys.TRASH)}
    for job_id, there in zip(job_ids, store.exist([keys.job(job_id) for job_id in job_ids]), strict=True):
        if not there and job_id not in trash:
            yield old[job_id], "its job is gone"
