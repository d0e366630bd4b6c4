"""The only place that builds real adapters from Settings."""

from app.blobs import BlobStore
from app.connect import Client, connect
from app.outbound import Outbound
from app.queues.ar_stream import ArStream
from app.queues.dit_queue import DitQueue, make_celery
from app.service import Intake, Stages
from app.settings import Settings
from app.store.jobs import JobStore
from app.store.outbox import Outbox
from app.store.workers import WorkerRegistry
from app.webhooks.sender import WebhookSender
from app.webhooks.signing import new_secret

#: Seconds that a worker waits for one answer. API calls wait less: their caller waits too.
_WORKER_TIMEOUT_S = 5.0
_API_TIMEOUT_S = 1.0
_UPLOAD_TIMEOUT_S = 30.0
_API_S3_TIMEOUT_S = 2.0


def api_client(settings: Settings) -> Client:
    return connect(settings, timeout_s=_API_TIMEOUT_S)


def worker_client(settings: Settings) -> Client:
    return connect(settings, timeout_s=_WORKER_TIMEOUT_S)


def job_store(settings: Settings, client: Client) -> JobStore:
    return JobStore(
        client,
        lease_ms=round(settings.lease_s * 1000),
        hint_ms=round(settings.hint_s * 1000),
        max_attempts=settings.max_attempts,
    )


def intake(settings: Settings, client: Client, blobs: BlobStore) -> Intake:
    return Intake(job_store(settings, client), blobs)


def stages(settings: Settings, client: Client) -> Stages:
    return Stages(job_store(settings, client), DitQueue(make_celery(settings)))


def ar_stream(client: Client, consumer: str) -> ArStream:
    return ArStream(client, consumer)


def registry(client: Client) -> WorkerRegistry:
    return WorkerRegistry(client)


def outbox(client: Client) -> Outbox:
    return Outbox(client)


def api_blobs(settings: Settings) -> BlobStore:
    return BlobStore(settings, timeout_s=_API_S3_TIMEOUT_S)


def worker_blobs(settings: Settings) -> BlobStore:
    return BlobStore(settings, timeout_s=_UPLOAD_TIMEOUT_S)


def webhook_sender(settings: Settings) -> WebhookSender:
    return WebhookSender(Outbound(settings.webhook_networks), timeout_s=settings.webhook_timeout_s)


def webhook_secret(settings: Settings, client: Client) -> str:
    """The operator's secret, or the one that all hosts of this Redis share."""
    if settings.webhook_secret is not None:
        return settings.webhook_secret.get_secret_value()
    return Outbox(client).secret(new_secret())
