from collections.abc import Iterator

import pytest

from app import wiring
from app.blobs import BlobStore
from app.connect import Client
from app.queues.dit_queue import DitQueue, make_celery
from app.service import Stages
from app.settings import Settings
from app.store.jobs import JobStore
from app.store.workers import WorkerRegistry
from workers.heartbeat import Heartbeat


@pytest.fixture
def stages(settings: Settings, client: Client, store: JobStore) -> Stages:
    return Stages(store, DitQueue(make_celery(settings)))


@pytest.fixture
def blobs(settings: Settings) -> BlobStore:
    return wiring.worker_blobs(settings)


@pytest.fixture
def registry(client: Client) -> WorkerRegistry:
    return wiring.registry(client)


@pytest.fixture
def heartbeat(settings: Settings, store: JobStore, registry: WorkerRegistry) -> Iterator[Heartbeat]:
    beating = Heartbeat(store, registry, name="w1", role="dit", device="cpu", lease_s=settings.lease_s)
    with beating:
        yield beating
