"""The states of an image and of a job, and the only moves between them.

The table below is the whole state machine. The Lua scripts get it as data (app/store/scripts.py), so no second copy
exists, and a test walks it cell by cell against a real server.
"""

from enum import StrEnum


class ImageState(StrEnum):
    QUEUED = "queued"  #: waits on the AR stream
    PLANNING = "planning"  #: leased by an AR worker
    PLANNED = "planned"  #: prior tokens stored; waits for a DiT worker
    PAINTING = "painting"  #: leased by a DiT worker
    CANCELING = "canceling"  #: canceled while leased; its worker has not let go yet
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Move(StrEnum):
    PLAN = "plan"  #: an AR worker takes the lease
    HAND_OVER = "hand_over"  #: AR stores the prior tokens
    PAINT = "paint"  #: a DiT worker takes the lease
    COMMIT = "commit"  #: DiT publishes the uploaded object
    RETRY = "retry"  #: the lease is lost or given back: to the last stage whose result is stored
    FAIL = "fail"
    CANCEL = "cancel"  #: by its caller, or by its deadline
    STOP = "stop"  #: the worker of a canceled image lets go, or its lease lapses


_S, _M = ImageState, Move

TABLE: dict[tuple[ImageState, Move], ImageState] = {
    (_S.QUEUED, _M.PLAN): _S.PLANNING,
    (_S.PLANNING, _M.HAND_OVER): _S.PLANNED,
    (_S.PLANNING, _M.RETRY): _S.QUEUED,
    (_S.PLANNED, _M.PAINT): _S.PAINTING,
    (_S.PAINTING, _M.RETRY): _S.PLANNED,
    (_S.PAINTING, _M.COMMIT): _S.SUCCEEDED,
    **{(s, _M.FAIL): _S.FAILED for s in (_S.QUEUED, _S.PLANNING, _S.PLANNED, _S.PAINTING)},
    **{(s, _M.CANCEL): _S.CANCELED for s in (_S.QUEUED, _S.PLANNED)},
    **{(s, _M.CANCEL): _S.CANCELING for s in (_S.PLANNING, _S.PAINTING)},
    (_S.CANCELING, _M.STOP): _S.CANCELED,
}

TERMINAL = frozenset({ImageState.SUCCEEDED, ImageState.FAILED, ImageState.CANCELED})
LEASED = frozenset({ImageState.PLANNING, ImageState.PAINTING, ImageState.CANCELING})


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"  #: every image ended, some succeeded and some failed
    FAILED = "failed"
    CANCELING = "canceling"  #: some canceled image is still in a worker's hands
    CANCELED = "canceled"
    EXPIRED = "expired"  #: its deadline came before any worker took it


def job_status(states: list[ImageState], *, started: bool, overdue: bool = False) -> JobStatus:
    """A job's status from its images' states.

    `started`: some image has once left the queue. `overdue`: some image was canceled by the job's deadline.
    """
    if not all(state in TERMINAL for state in states):
        if ImageState.CANCELING in states:
            return JobStatus.CANCELING
        return JobStatus.RUNNING if started else JobStatus.QUEUED
    if ImageState.CANCELED in states:
        return JobStatus.EXPIRED if overdue and not started else JobStatus.CANCELED
    if ImageState.FAILED not in states:
        return JobStatus.SUCCEEDED
    return JobStatus.PARTIAL if ImageState.SUCCEEDED in states else JobStatus.FAILED
