"""Encoding, upload and commit of finished pictures, off the device thread: the next image denoises meanwhile."""

import hashlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import structlog

from app import crash_points
from app.blobs import BlobStore
from app.dit.encode import encode, thumbnail
from app.dit.metadata import Metadata
from app.domain.job import StoredObject
from app.domain.messages import ImageRef, Lease, PaintOrder
from app.errors import ImageFailed, LostLease, NotFound, Unavailable
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
    """One thread. A server out of reach is waited for while the lease holds; nothing is painted twice for it.

    `model`: the name that files carry.
    """

    def __init__(
        self,
        blobs: BlobStore,
        store: JobStore,
        stages: Stages,
        heartbeat: Heartbeat,
        *,
        model: str = "",
        step_cache: str | None = None,
    ) -> None:
        """`model`, `step_cache`: what the pictures are painted with, told in their files and records."""
        self._model = model
        self._step_cache = step_cache
        self._blobs = blobs
        self._store = store
        self._stages = stages
        self._heartbeat = heartbeat
        self._queue: queue.Queue[Painted | None] = queue.Queue(_WAITING)
        self._give_back = threading.Event()
        # Beside the picture's upload: two in turn would wait twice for a slow server.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="thumbnail")
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
        self._beside.shutdown()

    def _run(self) -> None:
        while (painted := self._queue.get()) is not None:
            lease = painted.order.lease
            try:
                self._publish(painted)
            except LostLease:
                log.warning("too_late", image=str(lease.ref), fence=lease.fence)
                self._release(lease)
                self._remove_orphans(painted.order)
            except ImageFailed as failure:
                log.warning("upload_failed", image=str(lease.ref), code=failure.code, detail=failure.message)
                self._end(painted.order, failure)
                self._remove_orphans(painted.order)
            except Exception as error:
                log.exception("upload_crashed", image=str(lease.ref))
                self._end(painted.order, ImageFailed("upload_error", type(error).__name__, retryable=True))
            finally:
                self._heartbeat.drop(lease)

    def _publish(self, painted: Painted) -> None:
        order, ref = painted.order, painted.order.lease.ref
        output_format = order.parameters.output_format
        metadata = _metadata(order, self._model) if order.parameters.embed_metadata else None
        key, small_key = _keys(order)
        small = self._beside.submit(self._put, order, small_key, *thumbnail(painted.pixels))
        try:
            stored = self._put(order, key, *encode(painted.pixels, output_format, metadata))
        finally:
            wait([small])  # what goes wrong below may remove both
        stored = replace(stored, thumbnail=small.result().key, step_cache=self._step_cache)
        crash_points.reach("dit.after_upload")
        self._patiently(order, lambda: self._commit(order, stored))
        crash_points.reach("dit.after_commit")
        log.info("completed", image=str(ref), bytes=stored.size)

    def _put(self, order: PaintOrder, key: str, data: bytes, content_type: str) -> StoredObject:
        digest = hashlib.sha256(data).digest()
        return self._patiently(order, lambda: self._blobs.put(key, data, content_type, digest))

    def _commit(self, order: PaintOrder, stored: StoredObject) -> StoredObject:
        self._store.commit(order.lease, stored, steps=order.parameters.steps)
        return stored

    def _patiently(self, order: PaintOrder, call: Callable[[], StoredObject]) -> StoredObject:
        lease = order.lease
        return while_leased(call, lambda: self._heartbeat.lost(lease) or self._give_back.is_set(), str(lease.ref))

    def _remove_orphans(self, order: PaintOrder) -> None:
        """Call after the lease has been given up: nothing can be committed under its fence any more."""
        ref, (key, small_key) = order.lease.ref, _keys(order)
        try:
            stored = self._committed(ref)
            if stored is not None and stored.key == key:
                return  # the commit's answer was lost, not the commit
            self._blobs.delete(key)
            self._blobs.delete(small_key)
        except Unavailable as error:
            log.warning("orphan_left", key=key, error=str(error))

    def _committed(self, ref: ImageRef) -> StoredObject | None:
        try:
            return self._store.get(ref.job_id).images[ref.index].stored
        except NotFound:
            return None

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


def _keys(order: PaintOrder) -> tuple[str, str]:
    """Of the picture and of its thumbnail; under the fence, so that no other attempt ever writes to them."""
    stem = f"jobs/{order.lease.ref.job_id}/{order.lease.ref.index}/{order.lease.fence}"
    return f"{stem}.{order.parameters.output_format}", f"{stem}.thumbnail.webp"


def _metadata(order: PaintOrder, model: str) -> Metadata:
    parameters, ref = order.parameters, order.lease.ref
    return Metadata(
        prompt=parameters.prompt,
        size=str(parameters.size),
        seed=order.seed,
        steps=parameters.steps,
        guidance_scale=parameters.guidance_scale,
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        top_k=parameters.top_k,
        condition_images=len(order.inputs),
        model=model,
        job=ref.job_id,
        index=ref.index,
    )
