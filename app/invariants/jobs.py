"""What must hold of each job, by itself. A view is of one moment, so a live system is no excuse."""

from collections import Counter
from collections.abc import Callable, Iterator

from app.domain.job import ANYBODY
from app.domain.states import LEASED, TERMINAL, ImageState
from app.store.inventory import ImageView, JobView

#: (subject, detail) of what does not hold.
Found = Iterator[tuple[str, str]]

_END_EVENTS = {"image.completed": "succeeded", "image.failed": "failed", "image.canceled": "canceled"}
_S = ImageState


def _states(job: JobView) -> Iterator[tuple[str, ImageView, ImageState]]:
    """(subject, image, state) of the images whose state can be read; the others are state()'s to tell."""
    for index, image in enumerate(job.images):
        if image.record.get("state") in set(_S):
            yield f"{job.id}:{index}", image, _S(image.record["state"])


def state(job: JobView) -> Found:
    """Lease, fence, results and errors are those of the image's state."""
    for index, image in enumerate(job.images):
        if image.record.get("state") not in set(_S):
            yield f"{job.id}:{index}", f"state {image.record.get('state')!r} is none"
    for subject, image, now in _states(job):
        record = image.record
        if (now in LEASED) != ("owner" in record):
            yield subject, f"{now} {'without' if now in LEASED else 'with'} a worker that holds it"
        if int(record.get("fence", -1)) < int(record.get("ar_attempts", 0)) + int(record.get("dit_attempts", 0)):
            yield subject, f"fence {record.get('fence')} is less than its attempts"
        if now in (_S.PLANNED, _S.PAINTING, _S.SUCCEEDED) and "prior_height" not in record:
            yield subject, f"{now} without prior tokens"
        if (now is _S.SUCCEEDED) != ("object_key" in record):
            yield subject, f"{now} {'without' if now is _S.SUCCEEDED else 'with'} a committed object"
        if now is _S.FAILED and "error_code" not in record:
            yield subject, "failed without a reason"
        if (now in TERMINAL) != ("completed_at" in record):
            yield subject, f"{now} {'without' if now in TERMINAL else 'with'} a time of its end"


def due(job: JobView, horizon_ms: float) -> Found:
    """Every image that has not ended is in `due`, and soon; none that has."""
    for subject, image, now in _states(job):
        if now in TERMINAL and image.due is not None:
            yield subject, f"{now}, and still in due"
        elif now not in TERMINAL and image.due is None:
            yield subject, f"{now}, and not in due: nobody would recover it"
        elif image.due is not None and image.due > job.now + horizon_ms:
            yield subject, f"{now}, and due only in {(image.due - job.now) / 1000:.0f} s"


def counts(job: JobView) -> Found:
    """The job's own counts are those of its images."""
    ended = sum(now in TERMINAL for _, _, now in _states(job))
    if int(job.record.get("ended", -1)) != ended:
        yield job.id, f"{job.record.get('ended')} images are counted as ended, and {ended} have"
    if (ended == len(job.images)) != ("completed_at" in job.record):
        yield job.id, f"{ended} of {len(job.images)} images have ended, and its end is {'completed_at' in job.record}"
    if int(job.record.get("undelivered", 0)) != job.undelivered:
        yield job.id, f"{job.record.get('undelivered', 0)} events are counted as undelivered, {job.undelivered} are"


def events(job: JobView) -> Found:
    """The log has no gaps, and tells the end of each image and of the job once."""
    numbers = [number for number, _, _ in job.events]
    last = int(job.record.get("sequence", 0))
    if numbers != list(range(1, last + 1)):
        yield job.id, f"its log has the sequences {numbers}, and should have 1 to {last}"
    told = Counter((kind, index) for _, kind, index in job.events)
    for index, image in enumerate(job.images):
        now = image.record.get("state")
        wanted = [kind for kind, end in _END_EVENTS.items() if end == now]
        found = [kind for kind in _END_EVENTS for _ in range(told[kind, str(index)])]
        if found != wanted:
            yield f"{job.id}:{index}", f"{now}, and its log tells {found or 'no end'}"
    for kind, field in (("job.started", "started_at"), ("job.completed", "completed_at")):
        if told[kind, ""] != (field in job.record):
            yield job.id, f"its log tells {kind} {told[kind, '']} times, and its record says {field in job.record}"


def lists(job: JobView) -> Found:
    """An ended job will be removed at its time; one that can be seen is in its owner's list."""
    if ("completed_at" in job.record) != (job.expiry is not None):
        yield job.id, "ended, and nothing will remove it" if job.expiry is None else "not ended, and to be removed"
    if job.listed == job.gone:
        yield job.id, "removed, and in its owner's list" if job.gone else "not in its owner's list"


def hints(job: JobView) -> Found:
    """An image waits in the queue of its state alone; a queued one is hinted, or stands in its key's line."""
    priority, owner = job.record.get("priority", ""), job.record.get("owner", ANYBODY)
    for subject, image, now in _states(job):
        wanted = priority if now is _S.QUEUED else "dit" if now is _S.PLANNED else None
        wrong = [queue for queue, there in image.waiting.items() if there != (queue == wanted)]
        if wrong:
            yield subject, f"{now}, and {'in' if image.waiting[wrong[0]] else 'not in'} the list waiting:{wrong[0]}"
        if now is not _S.QUEUED:
            if image.held or image.in_turn:
                yield subject, f"{now}, and in its key's {'line' if image.held else 'turn'}"
            if "entry" in image.record and now not in (_S.PLANNING, _S.CANCELING):
                yield subject, f"{now}, and names a hint"
        elif owner != ANYBODY and image.held == image.in_turn:
            yield subject, f"queued, and in {'both' if image.held else 'neither'} of its key's line and turn"
        elif not (image.held or image.hinted):
            yield subject, "queued, and its hint is lost"


#: Name -> check. `due` also takes how far ahead a look may be, ms.
TABLE: dict[str, Callable[[JobView], Found]] = {
    "state": state,
    "counts": counts,
    "events": events,
    "lists": lists,
    "hints": hints,
}
