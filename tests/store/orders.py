"""Puts images into any state by real moves alone."""

from dataclasses import dataclass

from app.domain.job import Parameters, StoredObject, new_job_id
from app.domain.messages import ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.domain.sizes import Size
from app.domain.states import ImageState
from app.store.jobs import JobStore, Terms

PRIOR = PriorTokens(Size(256, 256).large_grid, tuple(range(64)))
PLAN = Plan(PRIOR)


def parameters(n: int = 1, prompt: str = "a red circle on a blue background", seed: int = 7) -> Parameters:
    return Parameters(prompt, Size(256, 256), n, seed, 12, 1.5, 0.9, 0.75, "png")


def stored(key: str = "jobs/x/0/1.png") -> StoredObject:
    return StoredObject(key, "image/png", 10, "00" * 32)


@dataclass(frozen=True)
class Placed:
    """An image in a state, with the lease that its last worker had."""

    ref: ImageRef
    lease: Lease


def submit(store: JobStore, n: int = 1, **terms) -> str:
    job_id = new_job_id()
    store.submit(job_id, parameters(n), Terms(**terms), metadata={})
    return job_id


def entry_of(store: JobStore, ref: ImageRef) -> str:
    value = store._client.hget(f"planpaint:image:{ref.job_id}:{ref.index}", "entry")
    return value.decode() if value else "0-0"


def plan(store: JobStore, ref: ImageRef, token: str = "ar-token") -> Lease:
    order = store.claim_plan(ref, entry=entry_of(store, ref), token=token)
    assert order is not None
    return order.lease


def paint(store: JobStore, ref: ImageRef, token: str = "dit-token") -> Lease:
    order = store.claim_paint(ref, token=token)
    assert order is not None
    return order.lease


def place(store: JobStore, state: ImageState) -> Placed:
    ref = ImageRef(submit(store), 0)
    lease = Lease(ref, 0)
    if state is ImageState.CANCELED:
        store.cancel(ref)
        return Placed(ref, lease)
    if state is not ImageState.QUEUED:
        lease = plan(store, ref)
    if state is ImageState.FAILED:
        store.fail(lease, "broken", "it broke")
    if state in (ImageState.PLANNED, ImageState.PAINTING, ImageState.SUCCEEDED):
        store.hand_over(lease, PLAN)
    if state in (ImageState.PAINTING, ImageState.SUCCEEDED):
        lease = paint(store, ref)
    if state is ImageState.CANCELING:
        store.cancel(ref)
    if state is ImageState.SUCCEEDED:
        store.commit(lease, stored(), steps=12)
    assert store.get(ref.job_id).images[0].state is state
    return Placed(ref, lease)
