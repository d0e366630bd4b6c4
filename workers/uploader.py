"""Encoding, upload and commit of finished pictures, off the device thread: the next image denoises meanwhile."""

import hashlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from app.blobs import BlobStore
from app.dit.encode import encode
from app.domain.job import StoredObject
from app.domain.messages import Lease, PaintOrder
from app.errors import ImageFailed, LostLease, Unavailable
from app.service import Stages
from app.store.jobs import JobStore
from workers.heartbeat import Heartbeat
from workers.process import while_leased

log = structlog.get_logger(__name__)

#: Finished pictures that may wait; after that, denoising pauses.
_WAITING = 2


@dataclass(frozen=True, slots=True)
class Painted:
    """A finished picture: pixels are uint8 [height, width, 3]."""

    order: PaintOrder
    pixels: npt.NDArray[np.uint8]


class Uploader:
    """One thread. A server out of reach is waited for while the lease holds; nothing is painted twice for it."""

    def __init__(self, blobs: BlobStore, store: JobStore, stages: Stages, heartbeat: Heartbeat) -> None:
        self._blobs = blobs
        self._store = store
        self._stages = stages
        self._heartbeat = heartbeat
        self._queue: queue.Queue[Painted | None] = queue.Queue(_WAITING)
        self._give_back = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)
        self._thread.start()

    def submit(self, painted: Painted) -> None:
        """Hand over a picture; blocks while two others wait."""
        self._queue.put(painted)

    def close(self, grace_s: float) -> None:
        """Finish what waits; after grace_s give the rest back to other workers."""
        self._queue.put(None)
        self._thread.join(grace_s)
        # From now on a wait for an unreachable server ends by giving the image back.
        self._give_back.set()
        self._thread.join()

    def _run(self) -> None:
        while (painted := self._queue.get()) is not None:
            lease = painted.order.lease
            try:
                self._publish(painted)
            except LostLease:
                log.warning("too_late", image=str(lease.ref), fence=lease.fence)
                self._release(lease)
            except ImageFailed as failure:
                log.warning("upload_failed", image=str(lease.ref), code=failure.code, detail=failure.message)
                self._end(painted.order, failure)
            except Exception as error:
                log.exception("upload_crashed", image=str(lease.ref))
                self._end(painted.order, ImageFailed("upload_error", type(error).__name__, retryable=True))
            finally:
                self._heartbeat.drop(lease)

    def _publish(self, painted: Painted) -> None:
        order = painted.order
        data, content_type = encode(painted.pixels, order.parameters.output_format)
        digest = hashlib.sha256(data).digest()
        ref, extension = order.lease.ref, order.parameters.output_format
        key = f"jobs/{ref.job_id}/{ref.index}/{order.lease.fence}.{extension}"
        stored = self._patiently(order, lambda: self._blobs.put(key, data, content_type, digest))
        try:
            self._patiently(order, lambda: self._commit(order, stored))
        except LostLease:
            self._remove_orphan(key)
            raise
        log.info("completed", image=str(ref), bytes=stored.size)

    def _commit(self, order: PaintOrder, stored: StoredObject) -> StoredObject:
        self._store.commit(order.lease, stored, steps=order.parameters.steps)
        return stored

    def _patiently(self, order: PaintOrder, call: Callable[[], StoredObject]) -> StoredObject:
        lease = order.lease
        return while_leased(call, lambda: self._heartbeat.lost(lease) or self._give_back.is_set(), str(lease.ref))

    def _remove_orphan(self, key: str) -> None:
        try:
            self._blobs.delete(key)
        except Unavailable as error:
            log.warning("orphan_left", key=key, error=str(error))

    def _release(self, lease: Lease) -> None:
        """Changes nothing for a lease that is lost; one that this stopping process still holds moves on at once."""
        try:
            self._stages.release(lease)
        except Exception as error:  # this thread must go on for the next picture
            log.warning("left_to_the_sweeper", image=str(lease.ref), error=str(error))

    def _end(self, order: PaintOrder, failure: ImageFailed) -> None:
        try:
            self._stages.give_up(order.lease, failure)
        except Exception as error:  # this thread must go on for the next picture
            log.warning("left_to_the_sweeper", image=str(order.lease.ref), error=str(error))
