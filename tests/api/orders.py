"""Workers played by hand, with real objects."""

import hashlib
import io
import threading

from PIL import Image

from app import keys, wiring
from app.connect import connect
from app.domain.messages import ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.errors import PlanpaintError
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


def a_picture(colour: str = "red") -> bytes:
    """A PNG of 256 x 256 pixels."""
    file = io.BytesIO()
    Image.new("RGB", (256, 256), colour).save(file, "PNG")
    return file.getvalue()


class Workers(threading.Thread):
    """Finishes every image that waits; those of which `fails` says so fail."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._client = connect(settings)
        self._store = wiring.job_store(settings, self._client)
        self._stopping = threading.Event()
        picture = a_picture()
        blobs = wiring.worker_blobs(settings)
        # One object for all: storing it each time would take most of the time.
        self._put = blobs.put("played.png", picture, "image/png", hashlib.sha256(picture).digest())
        self.fails = lambda index: False

    def __enter__(self) -> "Workers":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(10)
        self._client.close()

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            waiting = [keys.WAITING_REALTIME, keys.WAITING_BATCH]
            for member in (member for key in waiting for member in self._client.zrange(key, 0, -1)):
                try:
                    self._work(ImageRef.parse(member.decode()))
                except (PlanpaintError, AssertionError):
                    # Canceled or deleted meanwhile.
                    continue

    def _work(self, ref: ImageRef) -> None:
        if self.fails(ref.index):
            self._store.fail(plan(self._store, ref, f"t{ref}"), "nan_output", "the picture is not a number")
        else:
            steps = self._store.get(ref.job_id).parameters.steps
            self._store.commit(painting(self._store, ref.job_id, ref.index), self._put, steps=steps)
