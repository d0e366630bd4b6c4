"""Looks at the truth from outside: while the run lasts at leases, pointers and objects, at its end at everything."""

import base64
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from PIL import Image

from app import keys, wiring
from app.bench.chaos.history import Accepted, FinalEvent, FinalImage, FinalJob, Pointer, Stored
from app.connect import Client, connect, translated
from app.domain.job import Job
from app.domain.messages import ImageRef
from app.domain.states import LEASED, TERMINAL
from app.errors import ImageFailed, NotFound, Unavailable
from app.settings import Settings

#: Kombu's hash of messages that were handed out and not acknowledged.
_UNACKED = keys.PREFIX + "unacked"


class Witness:
    """Raises Unavailable while the server that it asks is away. One thread."""

    def __init__(self, settings: Settings) -> None:
        self._client: Client = connect(settings, timeout_s=1.0)
        self._store = wiring.job_store(settings, self._client)
        self._blobs = wiring.worker_blobs(settings)
        self._bucket = settings.s3_bucket
        self._s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key,
            aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        )
        self._pointers: dict[ImageRef, list[Pointer]] = defaultdict(list)
        self._etags: dict[str, str] = {}
        self.rewritten: set[str] = set()

    def close(self) -> None:
        self._client.close()

    # --- while it lasts

    def now_ms(self) -> int:
        with translated():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def open_images(self) -> dict[ImageRef, tuple[str, str, int, int]]:
        """State, owner, fence and ms of the last claim of every image that has not ended."""
        with translated():
            refs = [ImageRef.parse(member.decode()) for member in self._client.zrange(keys.DUE, 0, -1)]
            pipe = self._client.pipeline(transaction=False)
            for ref in refs:
                pipe.hmget(keys.image(ref.job_id, ref.index), "state", "owner", "fence", "planning_at", "painting_at")
            records = pipe.execute()
        return {
            ref: (
                (state or b"").decode(),
                (owner or b"").decode(),
                int(fence or 0),
                max(int(planning or 0), int(painting or 0)),
            )
            for ref, (state, owner, fence, planning, painting) in zip(refs, records, strict=True)
        }

    def record(self, ref: ImageRef) -> tuple[str, int]:
        """State and fence."""
        with translated():
            state, fence = self._client.hmget(keys.image(ref.job_id, ref.index), "state", "fence")
        return (state or b"").decode(), int(fence or 0)

    def progress(self) -> tuple[int, int]:
        """Images planned and committed, ever."""
        with translated():
            planned, committed = self._client.hmget(keys.STATS, "images_planned", "images_succeeded")
        return int(planned or 0), int(committed or 0)

    def waiting_webhooks(self) -> list[tuple[str, int, float]]:
        """Job, sequence and seconds until the next try of each event that is still to be delivered."""
        now = self.now_ms()
        with translated():
            found = self._client.zrange(keys.OUTBOX, 0, -1, withscores=True)
        pairs = [(member.decode().rpartition(":"), score) for member, score in found]
        return [(job_id, int(sequence), (score - now) / 1000) for (job_id, _, sequence), score in pairs]

    def look(self, accepted: Iterable[Accepted]) -> None:
        """Write down new pointers, and compare those that were seen before."""
        for each in accepted:
            try:
                job = self._store.get(each.ids[0])
            except NotFound:
                continue
            self._note(job)

    def _note(self, job: Job) -> None:
        for image in job.images:
            if image.stored is None:
                continue
            pointer = Pointer(image.stored.key, image.stored.sha256)
            seen = self._pointers[ImageRef(job.id, image.index)]
            if not seen or seen[-1] != pointer:
                seen.append(pointer)

    def look_at_objects(self) -> int:
        """Compare what the bucket lists with what it listed before; returns how many objects there are."""
        found = self._listed()
        for key, etag in found.items():
            if self._etags.setdefault(key, etag) != etag:
                self.rewritten.add(key)
        return len(found)

    def object_keys(self) -> list[str]:
        """Of every object that is there now."""
        return list(self._listed())

    def _listed(self) -> dict[str, str]:
        try:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
            return {each["Key"]: each["ETag"] for page in pages for each in page.get("Contents", ())}
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"object storage: {error}") from error

    # --- at the end

    def all_ended(self, accepted: Iterable[Accepted]) -> bool:
        with translated():
            if self._client.zcard(keys.DUE):
                return False
        try:
            return all(image.state in TERMINAL for each in accepted for image in self._store.get(each.ids[0]).images)
        except NotFound:
            return True  # the checker will say so

    def overdue(self, *, by_s: float) -> tuple[ImageRef, ...]:
        """Leased images whose lease ended so long ago."""
        limit = self.now_ms() - by_s * 1000
        with translated():
            late = self._client.zrange(keys.DUE, "-inf", limit, byscore=True)
        refs = [ImageRef.parse(member.decode()) for member in late]
        return tuple(ref for ref in refs if self.record(ref)[0] in LEASED)

    def left(self) -> dict[str, int]:
        """What should be empty when all has ended. A message that a killed worker held may stay if its image ended."""
        with translated():
            found = {
                "due": self._client.zcard(keys.DUE),
                "the Celery queue": self._client.llen(keys.DIT_LIST),
                "the outbox": self._client.zcard(keys.OUTBOX),
                "images that wait for AR": self._client.zcard(keys.WAITING_REALTIME)
                + self._client.zcard(keys.WAITING_BATCH),
                "images that wait for DiT": self._client.zcard(keys.WAITING_DIT),
                "active": self._client.hlen(keys.ACTIVE),
            }
            for stream in keys.AR_STREAMS:
                found[stream] = self._client.xlen(stream)
                found[f"{stream}, pending"] = self._client.xpending(stream, keys.AR_GROUP)["pending"]
            found["counts"] = sum(abs(int(count)) for count in self._client.hvals(keys.COUNTS))
            unacked = self._client.hvals(_UNACKED)
        found["unacked of images that have not ended"] = sum(
            self.record(_image(message))[0] not in TERMINAL for message in unacked
        )
        return found

    def jobs(self, accepted: Iterable[Accepted]) -> dict[str, FinalJob | None]:
        """Every job with its objects, read back and decoded."""
        found: dict[str, FinalJob | None] = {}
        with ThreadPoolExecutor(4) as pool:
            for each in accepted:
                for job_id in dict.fromkeys(each.ids):
                    found[job_id] = self._job(each, job_id, pool)
        return found

    def _job(self, accepted: Accepted, job_id: str, pool: ThreadPoolExecutor) -> FinalJob | None:
        try:
            job = self._store.get(job_id)
        except NotFound:
            return None
        self._note(job)
        wanted = set(job.webhook_events) if accepted.order.webhook else set()
        events = tuple(
            FinalEvent(event.id, event.type, event.index, event.type in wanted) for event in self._store.events(job_id)
        )
        objects = list(pool.map(self._stored, (image.stored.key if image.stored else None for image in job.images)))
        images = tuple(
            FinalImage(
                image.state.value,
                accepted.order.look + image.index,
                tuple(self._pointers.get(ImageRef(job_id, image.index), ())),
                stored,
                image.failure.code if image.failure else "",
            )
            for image, stored in zip(job.images, objects, strict=True)
        )
        return FinalJob(images, events)

    def _stored(self, key: str | None) -> Stored | None:
        if key is None:
            return None
        try:
            data = self._blobs.get(key)
        except ImageFailed:
            return Stored(None, None)
        try:
            with Image.open(io.BytesIO(data)) as picture:
                picture.load()
                size = picture.size
        except OSError:
            return Stored(hashlib.sha256(data).hexdigest(), None)
        return Stored(hashlib.sha256(data).hexdigest(), size)

    def orphans(self, jobs: dict[str, FinalJob | None]) -> int:
        """Objects of attempts that were cut off between upload and commit, pictures and thumbnails."""
        pointed = {image.pointers[-1].key for job in jobs.values() if job for image in job.images if image.pointers}
        stems = {key.rpartition(".")[0] for key in pointed}
        return sum(key.removesuffix(".thumbnail.webp") not in stems and key not in pointed for key in self._etags)


def _image(message: bytes) -> ImageRef:
    """Which image a message of the DiT queue is about, as kombu keeps it: its body is base64 of JSON."""
    _, values, _ = json.loads(base64.b64decode(json.loads(message)[0]["body"]))
    return ImageRef(values["job_id"], values["index"])
