"""What the routes work with, built once a process."""

from dataclasses import dataclass

from flask import current_app

from api.images import ImageIntake
from api.prompts import PromptLimit
from app.blobs import BlobStore
from app.service import Intake
from app.settings import Settings
from app.store.jobs import JobStore
from app.store.workers import WorkerRegistry


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    intake: Intake
    store: JobStore
    registry: WorkerRegistry
    blobs: BlobStore
    prompt_limit: PromptLimit
    images: ImageIntake


def current() -> Parts:
    """The parts of the application that serves the request at hand."""
    parts: Parts = current_app.extensions["planpaint"]
    return parts
