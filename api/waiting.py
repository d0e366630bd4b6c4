"""Waiting for a job to change or to end, without a connection to Redis for each one who waits."""

import time
from collections.abc import Callable
from contextlib import suppress

from api.parts import current
from api.stopping import STOPPING
from app.domain.job import Job
from app.errors import Unavailable


def until_changed(job_id: str, version: int, wait_s: float) -> None:
    """Return when the job's version is no longer this one, when the time is up, or when this process stops.

    Raises NotFound or Gone.
    """
    deadline = time.monotonic() + wait_s
    with current().changes.watch(job_id) as watch:
        while current().store.version(job_id) == version:
            left = deadline - time.monotonic()
            if left <= 0 or STOPPING.is_set():
                return
            watch.wait(left)


def until_done(job: Job, wait_s: float, gone: Callable[[], bool] | None = None) -> Job:
    """The job when it has ended, or as it is when the time is up, this process stops or the caller is `gone`.

    The job has been taken, so a Redis that is away is waited for as well. Raises NotFound or Gone.
    """
    deadline = time.monotonic() + wait_s
    with current().changes.watch(job.id) as watch:
        while True:
            with suppress(Unavailable):
                job = current().store.get(job.id)
            left = deadline - time.monotonic()
            if job.done or left <= 0 or STOPPING.is_set() or (gone is not None and gone()):
                return job
            watch.wait(min(left, 1.0))
