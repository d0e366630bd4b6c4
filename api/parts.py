"""What the routes work with, built once a process."""

from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app, request

from api.feeds import Feeds
from api.gate import Gate
from api.images import ImageIntake
from api.prompts import PromptLimit
from api.readers import Readers
from app.blobs import BlobStore
from app.service import Intake
from app.settings import Settings
from app.store.answers import Answers
from app.store.changes import Changes
from app.store.epoch import Epoch
from app.store.jobs import JobStore
from app.store.outbox import Outbox
from app.store.outlook import Outlooks
from app.store.workers import WorkerRegistry


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    gate: Gate
    epoch: Epoch
    intake: Intake
    store: JobStore
    registry: WorkerRegistry
    blobs: BlobStore
    prompt_limit: PromptLimit
    images: ImageIntake
    answers: Answers
    changes: Changes
    feeds: Feeds
    outlooks: Outlooks
    outbox: Outbox
    readers: Readers
    webhook_secrets: Callable[[], list[str]]
    rotate_webhook_secret: Callable[[], list[str]]


def current() -> Parts:
    """The parts of the application that serves the request at hand."""
    parts: Parts = current_app.extensions["planpaint"]
    return parts


def base_url() -> str:
    """Start of every URL in the answer at hand."""
    return current().settings.public_url or f"{request.scheme}://{request.host}"
