"""The dead letters. Those of images are in the images' records, so they go with their job and nothing is kept twice."""

import secrets
from collections.abc import Iterable

from app import keys
from app.connect import Client, translated
from app.domain.dead import MESSAGE, DeadLetter
from app.domain.messages import ImageRef
from app.errors import NotFound
from app.store.records import load_request
from app.store.scripts import MOST_DEAD

#: A message that could not be read is kept for so long, ms.
_MESSAGE_KEPT_MS = 7 * 86_400_000
#: Characters of a message that are kept.
_MOST_BODY = 2_000
_IMAGE_FIELDS = (
    "state",
    "error_code",
    "error_message",
    "prior_height",
    "ar_attempts",
    "dit_attempts",
    "last_worker",
    "traceback",
    "traceback_code",
    "retried_as",
)


class DeadLetters:
    def __init__(self, client: Client) -> None:
        self._client = client

    def bury(self, stage: str, reason: str, body: str, *, worker: str = "") -> str:
        """Keep a message that could not be read; returns the letter's id. Raises Unavailable."""
        message_id = f"{MESSAGE}{secrets.token_hex(8)}"
        fields = {"stage": stage, "code": "unreadable", "reason": reason, "body": body[:_MOST_BODY], "worker": worker}
        with translated():
            seconds, microseconds = self._client.time()
            pipe = self._client.pipeline(transaction=True)
            pipe.hset(keys.dead_message(message_id), mapping=fields)
            pipe.pexpire(keys.dead_message(message_id), _MESSAGE_KEPT_MS)
            pipe.zadd(keys.DEAD, {message_id: seconds * 1000 + microseconds // 1000})
            pipe.zremrangebyrank(keys.DEAD, 0, -(MOST_DEAD + 1))
            pipe.execute()
        return message_id

    def newest(self, limit: int) -> list[DeadLetter]:
        """The newest first. Messages whose time is over are forgotten on the way."""
        with translated():
            rows = self._client.zrange(keys.DEAD, 0, limit - 1, desc=True, withscores=True)
        ids = [(member.decode(), int(at)) for member, at in rows]
        found = self._read(ids)
        if lapsed := [letter_id for letter_id, _ in ids if letter_id.startswith(MESSAGE) and letter_id not in found]:
            with translated():
                self._client.zrem(keys.DEAD, *lapsed)
        return [found[letter_id] for letter_id, _ in ids if letter_id in found]

    def get(self, letter_id: str) -> DeadLetter:
        """Raises NotFound."""
        with translated():
            at = self._client.zscore(keys.DEAD, letter_id)
        found = {} if at is None else self._read([(letter_id, int(at))])
        if letter_id not in found:
            raise NotFound(f"no dead letter {letter_id[:80]}")
        return found[letter_id]

    def count(self) -> int:
        with translated():
            return int(self._client.zcard(keys.DEAD))

    def drop(self, letter_ids: Iterable[str]) -> int:
        """Forget letters, tracebacks included; returns how many there were. An image stays failed."""
        dropped = 0
        for letter_id in letter_ids:
            with translated():
                pipe = self._client.pipeline(transaction=True)
                pipe.zrem(keys.DEAD, letter_id)
                if letter_id.startswith(MESSAGE):
                    pipe.delete(keys.dead_message(letter_id))
                elif (ref := _ref(letter_id)) is not None:
                    pipe.hdel(keys.image(ref.job_id, ref.index), "traceback", "traceback_code", "last_worker")
                dropped += pipe.execute()[0]
        return dropped

    def all_ids(self) -> list[str]:
        with translated():
            return [member.decode() for member in self._client.zrange(keys.DEAD, 0, -1)]

    def retried(self, ref: ImageRef, before: tuple[str, ...], job_id: str) -> None:
        """Remember the job that repeats an image."""
        name = keys.image(ref.job_id, ref.index)
        with translated():
            # The job may have been removed meanwhile, and a record must not come back as a stump.
            if self._client.exists(name):
                self._client.hset(name, "retried_as", " ".join([*before, job_id]))

    def _read(self, ids: list[tuple[str, int]]) -> dict[str, DeadLetter]:
        messages = [(letter_id, at) for letter_id, at in ids if letter_id.startswith(MESSAGE)]
        images = [(letter_id, at, ref) for letter_id, at in ids if (ref := _ref(letter_id)) is not None]
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for letter_id, _ in messages:
                pipe.hgetall(keys.dead_message(letter_id))
            for _, _, ref in images:
                pipe.hmget(keys.image(ref.job_id, ref.index), _IMAGE_FIELDS)
                pipe.hmget(keys.job(ref.job_id), "owner", "request")
            replies = iter(pipe.execute())
        letters = [_message(letter_id, at, next(replies)) for letter_id, at in messages]
        letters += [_image(letter_id, at, next(replies), next(replies)) for letter_id, at, _ in images]
        return {letter.id: letter for letter in letters if letter}


def _ref(letter_id: str) -> ImageRef | None:
    """The image of a letter; None for a message."""
    try:
        return ImageRef.parse(letter_id)
    except ValueError:
        return None


def _message(letter_id: str, at: int, record: dict[bytes, bytes]) -> DeadLetter | None:
    text = {name.decode(): value.decode() for name, value in record.items()}
    return DeadLetter(letter_id, at, **text) if text else None  # type: ignore[arg-type]  # fields as bury() wrote them


def _image(letter_id: str, at: int, record: list[bytes | None], job: list[bytes | None]) -> DeadLetter | None:
    text = {name: value.decode() for name, value in zip(_IMAGE_FIELDS, record, strict=True) if value is not None}
    owner, request = job
    if text.get("state") != "failed" or owner is None or request is None:
        return None
    stage = "dit" if "prior_height" in text else "ar"
    return DeadLetter(
        id=letter_id,
        at=at,
        code=text["error_code"],
        reason=text["error_message"],
        stage=stage,
        attempts=int(text[f"{stage}_attempts"]),
        worker=text.get("last_worker", ""),
        owner=owner.decode(),
        traceback=text.get("traceback", ""),
        traceback_code=text.get("traceback_code", ""),
        retried_as=tuple(text.get("retried_as", "").split()),
        prompt=load_request(request)[0].prompt,
    )
