"""Compares what was promised with what has become of it, in the manner of Jepsen: a pure function of the history."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from app.bench.chaos.history import Accepted, FinalImage, FinalJob, History

_ENDED = ("succeeded", "failed", "canceled")
_COMPLETED = "image.completed"


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind`: lost, duplicated, stuck, missing, changed or wrong."""

    kind: str
    what: str


#: In the order of the table.
KINDS = ("lost", "duplicated", "stuck", "missing", "changed", "wrong")


def check(history: History) -> list[Violation]:
    """Everything that is not as promised; nothing for a run that kept its word."""
    return [
        *_accepted(history),
        *(each for job_id, job in history.jobs.items() if job is not None for each in _job(job_id, job)),
        *_pictures(history),
        *_deliveries(history),
        *(Violation("stuck", f"{ref}: its lease is over, and nobody has put it back") for ref in history.overdue),
        *(Violation("wrong", surprise) for surprise in history.surprises),
        *(Violation("changed", f"{key} was written again") for key in history.rewritten),
        *(Violation("stuck", f"{count} left in {name}") for name, count in history.left.items() if count),
    ]


def _accepted(history: History) -> Iterator[Violation]:
    if history.unanswered:
        yield Violation("stuck", f"{history.unanswered} orders never got an answer")
    for accepted in history.accepted:
        ids = set(accepted.ids)
        if len(ids) > 1:
            yield Violation(
                "duplicated", f"order {accepted.order.number} became {len(ids)} jobs by one idempotency key"
            )
        for job_id in ids:
            job = history.jobs.get(job_id)
            if job is None:
                yield Violation("lost", f"{job_id} was accepted and is not known")
            else:
                yield from _as_asked(accepted, job_id, job)


def _as_asked(accepted: Accepted, job_id: str, job: FinalJob) -> Iterator[Violation]:
    order = accepted.order
    if len(job.images) != order.n:
        yield Violation("lost", f"{job_id} has {len(job.images)} images in place of {order.n}")
    for index, image in enumerate(job.images):
        name = f"{job_id}:{index}"
        if image.state not in _ENDED:
            yield Violation("stuck", f"{name} is {image.state}")
        elif image.state == "failed" or (image.state == "canceled" and not accepted.canceled):
            yield Violation("wrong", f"{name} is {image.state} ({image.failure}), and nobody asked for that")
        size = image.stored.size if image.stored else None
        if image.state == "succeeded" and image.stored and image.stored.sha256 and size != (order.width, order.height):
            yield Violation("wrong", f"{name} is no picture of {order.width}x{order.height} but {size}")


def _job(job_id: str, job: FinalJob) -> Iterator[Violation]:
    kinds = Counter(event.type for event in job.events)
    for once in ("job.started", "job.completed"):
        if kinds[once] > 1:
            yield Violation("duplicated", f"{job_id} has {kinds[once]} events {once}")
    if all(image.state in _ENDED for image in job.images) and not kinds["job.completed"]:
        yield Violation("missing", f"{job_id} has ended and does not say so")
    for index, image in enumerate(job.images):
        announced = [event.type for event in job.events if event.index == index]
        yield from _image(f"{job_id}:{index}", image, announced)


def _image(name: str, image: FinalImage, announced: list[str]) -> Iterator[Violation]:
    pointers = set(image.pointers)
    if announced.count(_COMPLETED) > 1 or len(pointers) > 1:
        yield Violation("duplicated", f"{name} was committed more than once: {announced}, {sorted(map(str, pointers))}")
    if image.state in _ENDED and len(announced) != 1:
        yield Violation("duplicated" if announced else "missing", f"{name} ended with the events {announced}")
    if (image.state == "succeeded") != bool(pointers):
        yield Violation("wrong", f"{name} is {image.state} with {len(pointers)} objects")
    for pointer in pointers:
        if image.stored is None or image.stored.sha256 is None:
            yield Violation("lost", f"{name}: there is no picture at {pointer.key}")
        elif image.stored.sha256 != pointer.sha256:
            yield Violation("changed", f"{name}: {pointer.key} does not have the bytes that were committed")


def _pictures(history: History) -> Iterator[Violation]:
    """What is asked for alike is equal to the byte, whoever painted it after however many attempts."""
    looks: dict[int, set[str]] = defaultdict(set)
    for job in history.jobs.values():
        for image in job.images if job else ():
            if image.stored and image.stored.sha256:
                looks[image.look].add(image.stored.sha256)
    for look, digests in sorted(looks.items()):
        if len(digests) > 1:
            yield Violation("wrong", f"pictures of look {look} are of {len(digests)} kinds")


def _deliveries(history: History) -> Iterator[Violation]:
    bodies: dict[str, set[str]] = defaultdict(set)
    confirmed: set[str] = set()
    for received in history.received:
        bodies[received.event_id].add(received.digest)
        if received.confirmed:
            confirmed.add(received.event_id)
    for event_id, digests in bodies.items():
        if len(digests) > 1:
            yield Violation("duplicated", f"{event_id} came with {len(digests)} bodies")
    events = [event for job in history.jobs.values() if job for event in job.events]
    ids = Counter(event.event_id for event in events)
    for event_id, count in ids.items():
        if count > 1:
            yield Violation("duplicated", f"{count} events have the id {event_id}")
    for event in events:
        if event.wanted and event.event_id not in confirmed:
            yield Violation("missing", f"{event.event_id} ({event.type}) was never delivered")
    for event_id in bodies.keys() - ids.keys():
        yield Violation("wrong", f"{event_id} was delivered and is in no log")
