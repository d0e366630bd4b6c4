"""The DiT worker: Celery wakes it, the lease decides, and one image at a time is painted on its device."""

import json
import threading
import time
from functools import partial
from typing import Any

import structlog
from celery.signals import worker_ready, worker_shutting_down
from celery.worker import state as celery_state
from celery.worker.request import Request
from PIL import Image

from app import crash_points, devices, keys, wiring
from app.blobs import BlobStore
from app.connect import Client
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.messages import DitTask, PaintOrder
from app.errors import DeadlineExceeded, ImageFailed, LostLease, Unavailable
from app.queues.dit_queue import PAINT, parse_task
from app.service import Stages
from app.settings import Settings, instance_of, worker_name
from app.store.jobs import JobStore
from workers import dit_engine, inputs
from workers.heartbeat import Heartbeat
from workers.process import ends_at, may_begin
from workers.uploader import Painted, Uploader
from workers.watchdog import Watchdog

log = structlog.get_logger(__name__)

#: Pause before a claim is sent again, seconds.
_CLAIM_PAUSE_S = 1.0


class _Request(Request):  # type: ignore[misc]
    """Raises when an ack does not reach Redis, so that Celery reconnects.

    Its own way is to log the failure and go on: the message then counts as being worked on for ever, and with a
    prefetch of one this worker would never be given another.
    """

    acknowledged: bool

    def acknowledge(self) -> None:
        if not self.acknowledged:
            self.message.ack()
            self.acknowledged = True


class _Stopping(Exception):
    """This process should end before the image is done."""


class DitWorker:
    """Paints what a hint names, if its lease is to be had. Nothing is raised to Celery: the record tells all."""

    def __init__(
        self,
        engine: DitEngine,
        store: JobStore,
        stages: Stages,
        blobs: BlobStore,
        heartbeat: Heartbeat,
        uploader: Uploader,
        *,
        name: str,
        watchdog: Watchdog,
    ) -> None:
        self._engine = engine
        self._store = store
        self._stages = stages
        self._blobs = blobs
        self._heartbeat = heartbeat
        self._uploader = uploader
        self._watchdog = watchdog
        self.name = name
        self._claims = 0
        self._stop_at = float("inf")
        self.worn_out = False

    def ready(self) -> None:
        self._heartbeat.say("ready")

    def stop(self, grace_s: float) -> None:
        """Give the image under way back to other workers unless it is done within grace_s."""
        self._heartbeat.say("stopping")
        self._stop_at = time.monotonic() + grace_s

    def step(self, task: DitTask) -> None:
        """Claim, paint, hand to the uploader. `worn_out` afterwards: memory ran out; go on with a new process."""
        if self.worn_out:
            return  # the sweeper hints the image again
        self._claims += 1
        token = f"{self.name}/{self._claims}"
        crash_points.reach("dit.before_claim")
        try:
            order = self._claim(task, token)
        except Unavailable as error:
            # The sweeper hints the image again.
            log.warning("claim_failed", image=str(task.ref), error=str(error))
            return
        if order is None:
            log.info("hint_was_old", image=str(task.ref))
            return
        crash_points.reach("dit.after_claim")
        self._heartbeat.hold(order.lease)
        on_step = self._on_step(order)
        try:
            pictures = inputs.load(self._blobs, order.inputs, partial(self._heartbeat.lost, order.lease))
            with self._watchdog:
                pixels = self._engine.paint(_request(order, pictures), on_step)
            self._uploader.submit(Painted(order, pixels))
            crash_points.reach("dit.before_ack")
        except LostLease:
            log.warning("abandoned", image=str(order.lease.ref), fence=order.lease.fence)
            self._heartbeat.drop(order.lease)
        except _Stopping:
            self._release(order)
        except ImageFailed as failure:
            self._give_up(order, failure)
        except Exception as error:
            log.exception("paint_crashed", image=str(order.lease.ref))
            self._give_up(order, self._crashed(error))

    def _crashed(self, error: Exception) -> ImageFailed:
        if not devices.is_out_of_memory(error):
            return ImageFailed("dit_error", f"painting failed: {type(error).__name__}", retryable=True)
        # What earlier images left behind may be to blame, and nobody frees that but the end of the process.
        self.worn_out = True
        self._heartbeat.say("stopping")
        return ImageFailed("out_of_memory", "the device has too little memory for it", retryable=True, once=True)

    def _claim(self, task: DitTask, token: str) -> PaintOrder | None:
        """With the same token again when the answer is lost: it may have been given."""
        try:
            return self._store.claim_paint(task.ref, token=token)
        except Unavailable:
            time.sleep(_CLAIM_PAUSE_S)
            return self._store.claim_paint(task.ref, token=token)

    def _on_step(self, order: PaintOrder) -> Any:  # noqa: ANN401 - a closure
        deadline = ends_at(order.left_s)

        def on_step(step: int) -> None:
            self._watchdog.alive()
            crash_points.reach("dit.denoising")
            if self._heartbeat.lost(order.lease):
                raise LostLease(str(order.lease.ref))
            if time.monotonic() > self._stop_at:
                raise _Stopping
            if time.monotonic() >= deadline:
                raise DeadlineExceeded
            self._heartbeat.progress(order.lease, step)

        return on_step

    def _release(self, order: PaintOrder) -> None:
        log.info("given_back", image=str(order.lease.ref))
        try:
            self._stages.release(order.lease)
        except Unavailable as error:
            log.warning("left_to_the_sweeper", image=str(order.lease.ref), error=str(error))
        self._heartbeat.drop(order.lease)

    def _give_up(self, order: PaintOrder, failure: ImageFailed) -> None:
        log.warning("dit_failed", image=str(order.lease.ref), code=failure.code, detail=failure.message)
        try:
            self._stages.give_up(order.lease, failure)
        except Unavailable as error:
            log.warning("left_to_the_sweeper", image=str(order.lease.ref), error=str(error))
        self._heartbeat.drop(order.lease)


def _request(order: PaintOrder, pictures: tuple[Image.Image, ...]) -> PaintRequest:
    parameters = order.parameters
    return PaintRequest(
        prompt=parameters.prompt,
        size=parameters.size,
        prior=order.prior,
        seed=order.seed,
        steps=parameters.steps,
        guidance_scale=parameters.guidance_scale,
        images=pictures,
        condition=order.condition,
    )


def run(settings: Settings) -> bool:
    """Until TERM or INT, or until memory has run out: then the answer is True, and the process should be replaced."""
    name = worker_name("dit")
    client = wiring.worker_client(settings)
    store, stages = wiring.job_store(settings, client), wiring.stages(settings, client)
    device = devices.pick(settings.device, index=settings.device_index)
    heartbeat = Heartbeat(
        store,
        wiring.registry(client),
        name=name,
        role="dit",
        device=str(device),
        lease_s=settings.lease_s,
        instance=instance_of(settings, "dit"),
    )
    with heartbeat:
        if not may_begin(heartbeat):
            return False
        engine = dit_engine.load(settings)
        blobs = wiring.worker_blobs(settings)
        uploader = Uploader(
            blobs, store, stages, heartbeat, model=settings.checkpoint.name, step_cache=engine.step_cache
        )
        worker = DitWorker(
            engine, store, stages, blobs, heartbeat, uploader, name=name, watchdog=Watchdog(settings.step_limit_s)
        )
        _consume(settings, worker, client, heartbeat)
        uploader.close(settings.stop_grace_s)
        engine.close()
    return worker.worn_out


def _consume(settings: Settings, worker: DitWorker, client: Client, heartbeat: Heartbeat) -> None:
    """Run Celery in this process until TERM or INT, or drained; it finishes the image under way first."""
    application = wiring.dit_consumer(settings, client, worker.name)
    bury = partial(wiring.dead_letters(client).bury, "dit", worker=worker.name)

    @application.task(name=PAINT, bind=False, Request=_Request)  # type: ignore[untyped-decorator]
    def paint(**values: Any) -> None:  # noqa: ANN401 - JSON from the queue
        try:
            task = parse_task(values)
        except ValueError as error:
            log.warning("dit_hint_malformed", reason=str(error))
            bury(str(error), json.dumps(values))
            return
        if task is None:
            # The sweeper hints the image again, and a newer worker will take it.
            log.warning("dit_hint_too_new", fields=sorted(values))
            return
        worker.step(task)
        if worker.worn_out:
            celery_state.should_stop = 0  # after this message has been acknowledged

    def leave_when_drained() -> None:
        heartbeat.drained.wait()
        heartbeat.say("stopping")
        celery_state.should_stop = 0  # after the image under way, however long that takes

    threading.Thread(target=leave_when_drained, name="drain", daemon=True).start()
    worker_ready.connect(lambda **_: worker.ready(), weak=False)
    worker_shutting_down.connect(lambda **_: worker.stop(settings.stop_grace_s), weak=False)
    application.Worker(
        pool="solo",
        concurrency=1,
        queues=[keys.DIT_QUEUE],
        loglevel=settings.log_level.upper(),
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        hostname=worker.name,
    ).start()
