"""A DiT worker on servers of its own, in this process: real Valkey, real SeaweedFS, everything but Celery."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from app import wiring
from app.blobs import BlobStore
from app.connect import connect
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.job import Job, Parameters, Priority, StoredObject, new_job_id
from app.domain.messages import DitTask, ImageRef
from app.domain.prior import Plan
from app.errors import Misconfigured, Unavailable
from app.launcher import embedded
from app.launcher.child import Child
from app.settings import Settings
from app.store.jobs import Terms
from workers.dit import DitWorker
from workers.heartbeat import Heartbeat
from workers.uploader import Uploader
from workers.watchdog import Watchdog

_READY_S = 60.0


class _SlowBlobs(BlobStore):
    """Named as what it is, a stand-in for a slow network: each call reaches the real storage `delay_s` later."""

    delay_s = 0.3

    def put(self, key: str, data: bytes, content_type: str, sha256: bytes) -> StoredObject:
        time.sleep(self.delay_s)
        return super().put(key, data, content_type, sha256)

    def get(self, key: str) -> bytes:
        time.sleep(self.delay_s)
        return super().get(key)


class Workshop:
    """Use as a context manager. One call paints at a time."""

    def __init__(self) -> None:
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="planpaint-bench-")))
            credentials = embedded.Credentials.load(folder)
            starting.callback(embedded.remove_sockets, credentials)
            for server in (embedded.valkey, embedded.seaweedfs):
                child = server(folder, folder, credentials)
                child.start()
                starting.callback(_stop, child)
            settings = Settings.model_validate(
                {
                    "redis_url": embedded.redis_url(credentials),
                    "s3_endpoint": f"http://127.0.0.1:{credentials.s3_ports[0]}",
                    "s3_access_key": credentials.s3_access_key,
                    "s3_secret_key": credentials.s3_secret_key,
                }
            )
            self._connect(settings, starting)
            self._closing = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.close()

    def _connect(self, settings: Settings, closing: ExitStack) -> None:
        self.blobs, self._slow = BlobStore(settings, timeout_s=30), _SlowBlobs(settings, timeout_s=30)
        url = settings.redis_url.get_secret_value()
        _wait(lambda: embedded.redis_answers(url))
        _wait(self._has_bucket)
        client = closing.enter_context(connect(settings))
        self.store, self._stages = wiring.job_store(settings, client), wiring.stages(settings, client)
        heartbeat = Heartbeat(
            self.store, wiring.registry(client), name="bench", role="dit", device="cpu", lease_s=settings.lease_s
        )
        self._heartbeat = closing.enter_context(heartbeat)

    def _has_bucket(self) -> bool:
        try:
            self.blobs.ensure_bucket()
        except Unavailable:
            return False
        return True

    def submit(self, request: PaintRequest, images: int) -> str:
        """A job of so many images that have their plan already."""
        job_id = new_job_id()
        parameters = Parameters(
            request.prompt, request.size, images, request.seed, request.steps, request.guidance_scale, 0, 1, "png"
        )
        reused = ImageRef(job_id, 0), Plan(request.prior)
        self.store.submit(job_id, parameters, Terms(priority=Priority.BATCH), metadata={}, reused=reused)
        return job_id

    def paint(self, engine: DitEngine, request: PaintRequest, images: int, *, slow: bool = False) -> Job:
        """The job after all its images are committed. `slow`: with the delay added to every call of object storage."""
        job_id = self.submit(request, images)
        self.work(engine, job_id, images, slow=slow)
        job = self.store.get(job_id)
        if any(image.stored is None for image in job.images):
            raise RuntimeError(f"an image of the bench was not painted: {job.images}")
        return job

    def work(self, engine: DitEngine, job_id: str, images: int, *, slow: bool = False) -> None:
        """Let a worker take the job's images in turn, until the last of them is committed."""
        blobs = self._slow if slow else self.blobs
        uploader = Uploader(blobs, self.store, self._stages, self._heartbeat)
        worker = DitWorker(
            engine,
            self.store,
            self._stages,
            blobs,
            self._heartbeat,
            uploader,
            name=f"bench-{job_id}",
            watchdog=Watchdog(0),
        )
        for index in range(images):
            worker.step(DitTask(job_id, index))
        uploader.close(_READY_S)


def _stop(child: Child) -> None:
    child.terminate()
    child.finish(time.monotonic() + 10)


def _wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _READY_S
    while not ready():
        if time.monotonic() > deadline:
            raise Misconfigured(f"the bench's servers were not ready within {_READY_S:g} s")
        time.sleep(0.05)
