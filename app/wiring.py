"""The only place that builds real adapters from Settings."""

from functools import partial

from celery import Celery

from app.blobs import BlobStore
from app.connect import Client, connect
from app.errors import Conflict
from app.invariants.run import Checker
from app.outbound import Outbound
from app.queues.ar_stream import ArStream
from app.queues.dit_queue import DitQueue, make_celery
from app.service import Intake, Stages, Upkeep
from app.settings import Settings
from app.store.answers import Answers
from app.store.api_keys import ApiKeys
from app.store.changes import Changes
from app.store.dead import DeadLetters
from app.store.epoch import Epoch
from app.store.inventory import Inventory
from app.store.jobs import JobStore
from app.store.outbox import Outbox, Patience
from app.store.outlook import Outlooks
from app.store.overview import Overview
from app.store.quotas import Quotas
from app.store.reads import JobReads
from app.store.retention import Retention
from app.store.secrets import WebhookSecrets
from app.store.workers import WorkerRegistry
from app.traces import secrets_of
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
        max_queued=settings.max_queued,
    )


def retention(settings: Settings, client: Client) -> Retention:
    return Retention(client, JobReads(client), tombstone_ms=settings.tombstone_s * 1000)


def answers(client: Client) -> Answers:
    return Answers(client)


def epoch(client: Client) -> Epoch:
    return Epoch(client)


def intake(settings: Settings, client: Client, blobs: BlobStore, known: Epoch) -> Intake:
    return Intake(job_store(settings, client), blobs, retention(settings, client), answers(client), known)


def upkeep(settings: Settings, client: Client) -> Upkeep:
    return Upkeep(retention(settings, client), worker_blobs(settings))


def dead_letters(client: Client) -> DeadLetters:
    return DeadLetters(client)


def overview(client: Client) -> Overview:
    return Overview(client)


def checker(settings: Settings, client: Client) -> Checker:
    # A planned image behind a backlog is hinted ever more rarely; nothing waits longer (sweep.lua).
    horizon_ms = 1000 * max(settings.lease_s, settings.hint_s * 2**8) * 1.5
    return Checker(Inventory(client), worker_blobs(settings), horizon_ms=horizon_ms)


def changes(client: Client) -> Changes:
    return Changes(client)


def api_keys(client: Client) -> ApiKeys:
    return ApiKeys(client)


def quotas(client: Client) -> Quotas:
    return Quotas(client)


def outlooks(client: Client) -> Outlooks:
    return Outlooks(client, WorkerRegistry(client))


def stages(settings: Settings, client: Client) -> Stages:
    return Stages(job_store(settings, client), DitQueue(make_celery(settings)), secrets=secrets_of(settings))


def ar_stream(client: Client, consumer: str) -> ArStream:
    return ArStream(client, consumer, refused=partial(DeadLetters(client).bury, "ar", worker=consumer))


def dit_consumer(settings: Settings, client: Client, worker: str) -> Celery:
    """The application by which a worker takes hints."""
    return make_celery(settings, refused=partial(DeadLetters(client).bury, "dit", worker=worker))


def registry(client: Client) -> WorkerRegistry:
    return WorkerRegistry(client)


def outbox(settings: Settings, client: Client) -> Outbox:
    return Outbox(client, Patience(settings.webhook_pause_after_s * 1000, settings.webhook_pause_s * 1000))


def api_blobs(settings: Settings) -> BlobStore:
    return BlobStore(settings, timeout_s=_API_S3_TIMEOUT_S)


def worker_blobs(settings: Settings) -> BlobStore:
    return BlobStore(settings, timeout_s=_UPLOAD_TIMEOUT_S)


def webhook_sender(settings: Settings) -> WebhookSender:
    return WebhookSender(Outbound(settings.webhook_networks), timeout_s=settings.webhook_timeout_s)


def webhook_secrets(settings: Settings, client: Client) -> list[str]:
    """What signs: the operator's secrets, or those that all hosts of this Redis share. The first one is the newest."""
    return settings.webhook_secrets or WebhookSecrets(client).all(new_secret())


def rotate_webhook_secret(settings: Settings, client: Client) -> list[str]:
    """Draw a new secret; the one before it signs too for PLANPAINT_WEBHOOK_OVERLAP_S. Raises Conflict."""
    if settings.webhook_secrets:
        raise Conflict("the secret is set by PLANPAINT_WEBHOOK_SECRET; put the new one before it, with a comma")
    WebhookSecrets(client).rotate(new_secret(), settings.webhook_overlap_s * 1000)
    return webhook_secrets(settings, client)
