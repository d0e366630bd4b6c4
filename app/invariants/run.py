"""Looks at everything, and again at what looked wrong: what is right a moment later was only under way."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from app import keys
from app.blobs import BlobStore
from app.invariants import jobs, objects, whole
from app.invariants.violation import Violation
from app.store.inventory import Inventory, JobView

Objects = Literal["sample", "all", "none"]

#: Looks at what looks wrong, after the first, and the pause before each, seconds.
_AGAIN = 2
_PAUSE_S = 0.5


@dataclass(slots=True)
class Report:
    """`jobs`, `images`, `objects`: how many were looked at."""

    jobs: int = 0
    images: int = 0
    objects: int = 0
    violations: list[Violation] = field(default_factory=list)


class Checker:
    """`horizon_ms`: no look of the sweeper may lie further ahead."""

    def __init__(
        self, store: Inventory, blobs: BlobStore, *, horizon_ms: float, orphan_s: float = objects.ORPHAN_S
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._horizon_ms = horizon_ms
        self._orphan_s = orphan_s

    def run(self, which: Objects) -> Report:
        """Raises Unavailable."""
        report, stored = Report(), []
        suspects: list[Violation] = []
        for name in self._store.names(f"{keys.PREFIX}job:"):
            view = self._store.job(name.removeprefix(f"{keys.PREFIX}job:"))
            if view is None:
                continue
            report.jobs += 1
            report.images += len(view.images)
            stored += [] if view.gone else list(objects.committed(view))
            suspects += self._of_job(view)
        suspects += self._of_whole()
        suspects += self._of_objects(which, stored, report)
        report.violations = self._still_wrong(suspects)
        return report

    def _of_job(self, view: JobView) -> Iterator[Violation]:
        table = jobs.TABLE | {"due": partial(jobs.due, horizon_ms=self._horizon_ms)}
        for check, find in table.items():
            for subject, detail in find(view):
                yield Violation(check, subject, detail)

    def _of_whole(self) -> Iterator[Violation]:
        for check, find in whole.TABLE.items():
            for subject, detail in find(self._store):
                yield Violation(check, subject, detail)

    def _of_objects(
        self, which: Objects, stored: list[tuple[str, str, int, str]], report: Report
    ) -> Iterator[Violation]:
        if which == "none":
            return
        if which == "sample":
            stored = random.sample(stored, min(objects.SAMPLE, len(stored)))
        report.objects = len(stored)
        for each in stored:
            for subject, detail in objects.whole(self._blobs, *each, read=which == "sample"):
                yield Violation("objects", subject, detail)
        limit = objects.LISTED if which == "sample" else None
        for key, detail in objects.orphans(self._blobs, self._store, limit=limit, older_s=self._orphan_s):
            yield Violation("orphans", key, detail)

    def _still_wrong(self, suspects: list[Violation]) -> list[Violation]:
        for _ in range(_AGAIN):
            if not suspects:
                return []
            time.sleep(_PAUSE_S)
            again = self._look_again(suspects)
            suspects = [each for each in again if each.place in {suspect.place for suspect in suspects}]
        return list(dict.fromkeys(suspects))

    def _look_again(self, suspects: list[Violation]) -> list[Violation]:
        found: list[Violation] = []
        of_jobs = dict.fromkeys(_job_id(each.subject) for each in suspects if each.subject.startswith("job_"))
        for job_id in of_jobs:
            view = self._store.job(job_id)
            if view is None:
                continue
            found += self._of_job(view)
            wrong = {each.subject for each in suspects if each.check == "objects"}
            for each in objects.committed(view):
                if each[0] in wrong:
                    found += [Violation("objects", *what) for what in objects.whole(self._blobs, *each, read=True)]
        found += self._of_whole()
        gone = [each for each in suspects if each.check == "orphans"]
        if gone:
            there = self._store.exist([keys.job(each.subject.split("/")[1]) for each in gone])
            found += [
                each
                for each, job in zip(gone, there, strict=True)
                if not job and self._blobs.size(each.subject) is not None
            ]
        return found


def _job_id(subject: str) -> str:
    return subject.partition(":")[0]
