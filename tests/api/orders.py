"""Workers played by hand, with real objects."""

import hashlib

from app import wiring
from app.domain.messages import ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.settings import Settings
from app.store.jobs import JobStore
from tests.store.orders import paint, plan


def planned(store: JobStore, job_id: str, index: int = 0) -> ImageRef:
    """Through AR, with a plan of the size that the job has."""
    ref = ImageRef(job_id, index)
    grid = store.get(job_id).parameters.size.large_grid
    ids = tuple(number % 60_000 for number in range(grid.tokens))
    store.hand_over(plan(store, ref, f"ar-{ref}"), Plan(PriorTokens(grid, ids)))
    return ref


def painting(store: JobStore, job_id: str, index: int = 0) -> Lease:
    return paint(store, planned(store, job_id, index), f"dit-{job_id}:{index}")


def finish(store: JobStore, settings: Settings, job_id: str, index: int = 0, data: bytes = b"picture") -> str:
    """Through both stages; returns the object's key."""
    lease = painting(store, job_id, index)
    key = f"jobs/{job_id}/{index}/{lease.fence}.png"
    put = wiring.worker_blobs(settings).put(key, data, "image/png", hashlib.sha256(data).digest())
    store.commit(lease, put, steps=store.get(job_id).parameters.steps)
    return key
