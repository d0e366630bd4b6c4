"""Jobs of all owners, for operators."""

from collections.abc import Iterator

from app import keys
from app.connect import Client, translated
from app.domain.job import ANYBODY, Image, Job
from app.domain.messages import ImageRef
from app.domain.states import TERMINAL, ImageState
from app.domain.stuck import Place
from app.store.reads import JobReads

_CHUNK = 200


class Overview:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._reads = JobReads(client)

    def now(self) -> int:
        with translated():
            seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def recent(self, limit: int) -> list[Job]:
        """The newest jobs of all owners, the newest first."""
        with translated():
            owners = [ANYBODY, *(key_id.decode() for key_id in self._client.hkeys(keys.API_KEYS))]
            pipe = self._client.pipeline(transaction=False)
            for owner in owners:
                pipe.zrange(keys.jobs_of(owner), 0, limit - 1, desc=True, withscores=True)
            rows = [(score, member.decode()) for found in pipe.execute() for member, score in found]
        return self._reads.many([job_id for _, job_id in sorted(rows, reverse=True)[:limit]])

    def unfinished(self) -> Iterator[Job]:
        """Every job with an image that has not ended, those first whose look is due first."""
        with translated():
            members = self._client.zrange(keys.DUE, 0, -1)
        ordered = list(dict.fromkeys(member.decode().rpartition(":")[0] for member in members))
        for start in range(0, len(ordered), _CHUNK):
            yield from self._reads.many(ordered[start : start + _CHUNK])

    def places(self, job: Job) -> list[Place]:
        """Where each image of a job is that has not ended."""
        images = [image for image in job.images if image.state not in TERMINAL]
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for image in images:
                member, name = str(ImageRef(job.id, image.index)), keys.image(job.id, image.index)
                pipe.zscore(keys.DUE, member)
                queue = keys.WAITING_DIT if image.state is ImageState.PLANNED else keys.waiting(job.priority)
                pipe.zrank(queue, member)
                pipe.hmget(name, "state", "owner", f"{image.state.value}_at")
            replies = iter(pipe.execute())
        places = [_place(job, image, next(replies), next(replies), next(replies)) for image in images]
        return [place for place in places if place is not None]


def _place(job: Job, image: Image, due: float | None, ahead: int | None, record: list[bytes | None]) -> Place | None:
    """None for an image that has moved on since its job was read."""
    state, token, since = record
    if state is None or state.decode() != image.state.value:
        return None
    worker = token.decode().rpartition("/")[0] if token else ""
    return Place(image, int(since or job.created_at), due, ahead, worker)
