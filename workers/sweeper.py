"""The sweeper: puts back what dead workers held, sends lost hints again, ends what is overdue, removes what is old.

Any number may run; one is enough.
"""

import threading
import time

import structlog

from app import wiring
from app.errors import Unavailable
from app.queues.ar_stream import ArStream
from app.service import Stages, Upkeep
from app.settings import Settings, instance_of, worker_name
from workers.heartbeat import Heartbeat
from workers.process import patiently, stop_on_signals

log = structlog.get_logger(__name__)

#: Consumers of killed AR workers are taken off the group when idle for this long.
_CONSUMER_IDLE_MS = 3_600_000
_TIDY_S = 60.0


class Sweeper:
    def __init__(self, stages: Stages, stream: ArStream, *, lease_s: float) -> None:
        self._stages = stages
        self._stream = stream
        self._lease_s = lease_s
        self._quiet_until = 0.0
        self._tidied_at = time.monotonic()

    def step(self) -> None:
        """One sweep. After an outage it waits for a lease's length, so that live workers can renew theirs first."""
        if time.monotonic() < self._quiet_until:
            return
        try:
            self._stages.sweep()
            if time.monotonic() - self._tidied_at > _TIDY_S:
                self._stream.forget_idle_consumers(_CONSUMER_IDLE_MS)
                self._tidied_at = time.monotonic()
        except Unavailable as error:
            log.warning("sweep_failed", error=str(error))
            self._quiet_until = time.monotonic() + self._lease_s


def keep_up(upkeep: Upkeep, stop: threading.Event, pause_s: float) -> None:
    """Remove what is old until `stop`. Outlives its bugs, since nothing else would remove anything."""
    while not stop.wait(pause_s):
        try:
            if removed := upkeep.step():
                log.info("removed", jobs=removed)
        except Unavailable as error:
            log.warning("upkeep_failed", error=str(error))
        except Exception:
            log.exception("upkeep_crashed")


def run(settings: Settings) -> None:
    stop: threading.Event = stop_on_signals()
    client = wiring.worker_client(settings)
    name = worker_name("sweeper")
    stream = wiring.ar_stream(client, name)
    store = wiring.job_store(settings, client)
    patiently(stream.ensure_groups, stop)
    sweeper = Sweeper(wiring.stages(settings, client), stream, lease_s=settings.lease_s)
    # On its own thread: slow object storage must not keep the images of dead workers waiting.
    upkeep = threading.Thread(target=keep_up, args=(wiring.upkeep(settings, client), stop, settings.sweep_s))
    upkeep.start()
    with Heartbeat(
        store,
        wiring.registry(client),
        name=name,
        role="sweeper",
        device="",
        lease_s=settings.lease_s,
        instance=instance_of(settings, "sweeper"),
    ) as heartbeat:
        heartbeat.say("ready")
        while not stop.wait(settings.sweep_s):
            sweeper.step()
        upkeep.join()
