"""The DiT queue: Celery carries a hint per planned image. JSON only, no result backend, late ack, prefetch 1.

Celery on Redis pops a message before it records it, so a kill in between loses the message; with acks a second later
it may also deliver twice. Both are harmless here: the sweeper hints again, and the lease refuses a second worker.
"""

from dataclasses import asdict
from typing import Any

import celery
from celery.app.amqp import AMQP
from kombu import Connection, Queue
from kombu.exceptions import OperationalError

from app import keys
from app.domain.messages import SCHEMA, DitTask
from app.errors import Unavailable
from app.queues.transport import FIRST, REFUSED, SCHEME, TASK, Refused
from app.settings import Settings

PAINT = TASK

#: Redelivery after this long is only a second safety net behind the sweeper, seconds.
_VISIBILITY_S = 3600


class _Connection(Connection):  # type: ignore[misc]
    """Looks for a lost broker every second. Kombu's own pauses grow to half a minute, for which work would wait."""

    def ensure_connection(self, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - kombu's own
        return super().ensure_connection(
            *args, **keywords | {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 1.0}
        )


class _Amqp(AMQP):  # type: ignore[misc]
    Connection = _Connection


def make_celery(settings: Settings, *, refused: Refused | None = None) -> celery.Celery:
    """The Celery application, configured from our settings alone.

    `refused` is told the reason and the text of messages that are no hints.
    """
    _, _, place = settings.redis_url.get_secret_value().partition("://")
    application = celery.Celery("planpaint", broker=f"{SCHEME}://{place}", amqp=_Amqp, set_as_current=False)
    application.conf.update(
        task_queues=[Queue(keys.DIT_QUEUE)],
        task_default_queue=keys.DIT_QUEUE,
        task_create_missing_queues=False,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        result_accept_content=["json"],
        task_ignore_result=True,
        result_backend=None,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_pool="solo",
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_use_ssl=settings.redis_tls or None,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_retry=True,
        broker_transport_options={
            "global_keyprefix": keys.PREFIX,
            # One list and not one for each of four priorities: AR has taken care of those.
            "priority_steps": [0],
            "visibility_timeout": _VISIBILITY_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            # An AR worker publishes between two tokens of its batch, so that a silent broker must not keep it for long.
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            # A worker whose broker has gone silent, with its connection still open, notices within twice as long.
            "health_check_interval": 5,
            "client_name": "planpaint-celery",
            REFUSED: refused,
        },
    )
    return application


class DitQueue:
    """Publishes hints. A lost one costs latency only, so publishing never retries for long."""

    def __init__(self, application: celery.Celery) -> None:
        self._application = application

    def publish(self, task: DitTask, *, first: bool = False) -> None:
        """`first`: in front of all that wait, for an image that has waited its turn before."""
        try:
            self._application.send_task(
                PAINT,
                kwargs=asdict(task),
                queue=keys.DIT_QUEUE,
                headers={FIRST: True} if first else None,
                ignore_result=True,
                retry=False,
            )
        except OperationalError as error:
            raise Unavailable(f"celery broker: {error}") from error


def parse_task(values: dict[str, Any]) -> DitTask | None:
    """Read a hint's arguments; None for one of a newer schema. Raises ValueError for one that is malformed."""
    try:
        task = DitTask(job_id=str(values["job_id"]), index=int(values["index"]), schema=int(values["schema"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its arguments are not those of a hint: {', '.join(sorted(values))}"[:200]) from error
    if task.schema < 1:
        raise ValueError(f"no schema {task.schema} has ever been")
    return task if task.schema <= SCHEMA else None
