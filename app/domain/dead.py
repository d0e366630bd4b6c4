"""Dead letters: what failed for good, kept for operators."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An image that failed, or a message that could not be read. `at`: server ms.

    `id`: "<job>:<index>", or "message_...". `stage`: ar or dit. `attempts`: of an image, in that stage.
    `worker`: the one that had it last. `traceback`: of the last error that a worker could tell of, and its code in
    `traceback_code`; "" when the processes died without a word. `retried_as`: the jobs that repeat an image, in order.
    `prompt` of an image and `body` of a message are what callers wrote: shown only on request.
    """

    id: str
    at: int
    code: str
    reason: str
    stage: str
    attempts: int = 0
    worker: str = ""
    owner: str = ""
    traceback: str = ""
    traceback_code: str = ""
    retried_as: tuple[str, ...] = ()
    prompt: str = ""
    body: str = ""

    @property
    def is_image(self) -> bool:
        return not self.id.startswith(MESSAGE)


#: Start of the ids of messages.
MESSAGE = "message_"
