"""What one reader was told of one job, by a stream, by webhooks or as JSON."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from loadtest.checks import ENDED, ended, expect, image_record, same
from loadtest.orders import Order

TYPES = ("job.started", "image.completed", "image.failed", "image.canceled", "job.completed")
_STATUS = {"image.completed": "succeeded", "image.failed": "failed", "image.canceled": "canceled"}


class EventLog:
    """Refuses what must not be told: an event twice, one of another job, one behind the end.

    `in_order`: also a gap. Streams keep the order, webhooks need not.
    """

    def __init__(self, job_id: str, *, in_order: bool) -> None:
        self.job_id = job_id
        self._in_order = in_order
        self._events: dict[int, dict[str, Any]] = {}
        self._last: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all has been told, from the first event to the end of the job."""
        return self._last is not None and len(self._events) == self._last

    @property
    def newest(self) -> int:
        """The highest sequence that was told; 0 before the first."""
        return max(self._events, default=0)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [self._events[sequence] for sequence in sorted(self._events)]

    def add(self, event: dict[str, Any]) -> None:
        """Raises CheckFailed."""
        sequence, kind = event["sequence"], event["type"]
        expect(kind in TYPES, f"an event is of type {kind!r}")
        same("the job of an event", event["data"]["job_id"], self.job_id)
        expect(isinstance(sequence, int) and sequence >= 1, f"the sequence of {kind} is {sequence!r}")
        expect(sequence not in self._events, f"event {sequence} ({kind}) was told twice")
        if self._in_order:
            same(f"the sequence of {kind}", sequence, self.newest + 1)
        expect(
            self._last is None or sequence < self._last, f"event {sequence} ({kind}) comes behind the end of its job"
        )
        _moment(event)
        self._events[sequence] = event
        if kind == "job.completed":
            same("the highest sequence, that of job.completed,", sequence, self.newest)
            self._last = sequence

    def check(self, order: Order, statuses: Collection[str] = ENDED) -> None:
        """The whole log is there without a gap, and tells one end of each image and of the job."""
        events = self.events
        expect(self.complete, f"of the log came only {[(event['sequence'], event['type']) for event in events]}")
        same("the sequences", [event["sequence"] for event in events], list(range(1, len(events) + 1)))
        moments = [_moment(event) for event in events]
        same("the order of the timestamps", moments, sorted(moments))
        starts = [event["sequence"] for event in events if event["type"] == "job.started"]
        expect(starts in ([], [1]), f"job.started is told at {starts}")
        images = [event for event in events if event["type"] in _STATUS]
        same("the images whose end is told", sorted(e["data"]["image"]["index"] for e in images), list(range(order.n)))
        for event in images:
            image = event["data"]["image"]
            same(f"the status in {event['type']}", image["status"], _STATUS[event["type"]])
            image_record(order, image["index"], image)
        for event in events:
            same("the metadata of an event", event["data"]["metadata"], order.metadata)
        # An event leaves the prompt out, and tells the metadata beside the job.
        told = events[-1]["data"]["job"]
        parameters = told["parameters"] | {"prompt": order.prompt}
        ended(order, told | {"metadata": order.metadata, "parameters": parameters}, statuses)


def check_progress(order: Order, job_id: str, newest: int, event: dict[str, Any]) -> None:
    """`image.progress` is no line of the log: it has the sequence of the line before it."""
    same("the job of a progress", event["data"]["job_id"], job_id)
    same("the sequence of a progress", event["sequence"], newest)
    image = event["data"]["image"]
    expect(0 <= image["index"] < order.n, f"there is no image {image['index']}")
    expect(0 < image["step"] <= image["steps"] == order.steps, f"image.progress tells {image}")


def _moment(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["timestamp"])
