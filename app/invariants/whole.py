"""What must hold of the store as a whole: that its lists name what there is."""

from collections.abc import Callable, Iterator

from app import keys
from app.domain.dead import MESSAGE
from app.domain.states import TERMINAL
from app.invariants.jobs import Found
from app.store.inventory import Inventory

_ENDED = {state.value for state in TERMINAL}
#: What the sweeper removes may be late by so much, ms.
_LATE_MS = 600_000
#: Starts of keys that lapse by themselves, and of keys that must not.
_LAPSING = ("gone:", "idempotency:", "quota:", "endpoint:", "webhook-test:", "worker:", "dead-message:")
_LASTING = ("job:", "image:", "events:", "jobs:", "line:", "turn:", "api-key:")
_SINGLE = (keys.DUE, keys.COUNTS, keys.ACTIVE, keys.EXPIRY, keys.TRASH, keys.OUTBOX, keys.API_KEYS, keys.DEAD)


def due_names(store: Inventory) -> Found:
    """`due` names images that there are and that have not ended."""
    members = [member for member, _ in store.members(keys.DUE)]
    for member, state in zip(members, store.states(members), strict=True):
        if state is None or state in _ENDED:
            yield member, "in due, and there is no such image" if state is None else f"in due, and {state}"


def streams(store: Inventory) -> Found:
    """A stream's entry is the hint of an image that waits or is being planned; what is pending is there."""
    for stream in keys.AR_STREAMS:
        pending = store.pending(stream)
        hints = list(store.hints(stream))
        members = [f"{fields.get('job')}:{fields.get('index')}" for _, fields in hints]
        for (entry, _), member, state, named in zip(
            hints, members, store.states(members), store.entries(members), strict=True
        ):
            if named != entry:
                what = "is of no image" if state is None else f"is not the hint of {member}, which is {state}"
                yield f"{stream} {entry}", what
        there = {entry for entry, _ in hints}
        for entry in pending:
            if entry not in there:
                yield f"{stream} {entry}", "is pending, and gone from the stream"


def totals(store: Inventory) -> Found:
    """Counts of images by state, owner and queue are those of the records."""
    names = {"states": keys.COUNTS, "owners": keys.ACTIVE, "waiting": f"{keys.PREFIX}waiting"}
    for what, (counted, kept) in store.tally().items():
        for name in sorted(counted.keys() | kept.keys()):
            if counted.get(name, 0) != kept.get(name, 0):
                yield f"{names[what]} {name}", f"{kept.get(name, 0)} are counted, and {counted.get(name, 0)} there are"


def owners(store: Inventory) -> Found:
    """Owners' lists, `expiry` and the outbox name jobs that there are; removal is not late."""
    now = store.now()
    for name in [*store.names(f"{keys.PREFIX}jobs:"), keys.EXPIRY]:
        listed = list(store.members(name))
        for (job_id, score), there in zip(listed, store.exist([keys.job(j) for j, _ in listed]), strict=True):
            if not there:
                yield job_id, f"in {name}, and there is no such job"
            elif name == keys.EXPIRY and score < now - _LATE_MS:
                yield job_id, f"should have been removed {(now - score) / 1000:.0f} s ago: does a sweeper run?"
    waiting = [member for member, _ in store.members(keys.OUTBOX)]
    records = [_record_of(member.rpartition(":")[0]) for member in waiting]
    for member, there in zip(waiting, store.exist(records), strict=True):
        if not there:
            yield member, "in the outbox, and there is no such job"


def trash(store: Inventory) -> Found:
    """The objects of removed jobs are removed, too."""
    now = store.now()
    for job_id, score in store.members(keys.TRASH):
        if score < now - _LATE_MS:
            yield (
                job_id,
                f"its objects should have been removed {(now - score) / 1000:.0f} s ago: see the sweeper's log",
            )


def dead(store: Inventory) -> Found:
    """Dead letters are of images that failed, whose jobs are there."""
    members = [member for member, _ in store.members(keys.DEAD) if not member.startswith(MESSAGE)]
    for member, state in zip(members, store.states(members), strict=True):
        if state != "failed":
            yield member, f"a dead letter of an image that is {state or 'gone'}"


def families(store: Inventory) -> Found:
    """No image, log or delivery without its job; what must lapse will, and nothing else does."""
    names = list(store.names())
    belong = [(name, job_id) for name in names if (job_id := _job_of(name))]
    for (name, job_id), there in zip(belong, store.exist([_record_of(job_id) for _, job_id in belong]), strict=True):
        if not there:
            yield name, f"there is no {job_id} that it belongs to"
    for name, left in zip(names, store.lifetimes(names), strict=True):
        kind = name.removeprefix(keys.PREFIX)
        if left == -1 and kind.startswith(_LAPSING):
            yield name, "would be kept for ever"
        elif left >= 0 and (kind.startswith(_LASTING) or name in _SINGLE):
            yield name, f"would lapse by itself in {left / 1000:.0f} s"


def _job_of(name: str) -> str | None:
    """The job or test that a key belongs to."""
    kind, _, rest = name.removeprefix(keys.PREFIX).partition(":")
    if kind in ("image", "delivery"):
        return rest.rpartition(":")[0]
    return rest if kind == "events" else None


def _record_of(job_id: str) -> str:
    return keys.webhook_test(job_id) if job_id.startswith("test_") else keys.job(job_id)


TABLE: dict[str, Callable[[Inventory], Iterator[tuple[str, str]]]] = {
    "due": due_names,
    "streams": streams,
    "totals": totals,
    "owners": owners,
    "trash": trash,
    "dead": dead,
    "keys": families,
}
