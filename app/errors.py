"""Every error the program raises on purpose.

PlanpaintError
|-- RefusedInput        the caller's input is wrong; names the field      -> HTTP 422
|-- NotFound            no such job, image or stored result               -> HTTP 404
|   `-- Gone            it was there and has been removed               -> HTTP 410
|-- Conflict            it is in a state that does not allow this         -> HTTP 409
|-- KeyReused           this Idempotency-Key came with another request    -> HTTP 422
|-- NotReady            it exists but has no result yet                   -> HTTP 409
|-- LimitReached        the caller's key has used up what it may use      -> HTTP 429
|-- QueueFull           as many images wait as may wait                   -> HTTP 503
|-- Unavailable         Redis or object storage is out of reach; retry    -> HTTP 503
|   `-- DataLost          Redis has come back without its data          -> HTTP 503
|-- Misconfigured       settings or files are wrong; the process stops
|   `-- BrokenCheckpoint  names the file
|-- LostLease           somebody else owns the image now; drop the work
`-- ImageFailed         this image cannot be made; carries a public code
    |-- retryable = True when another attempt may succeed
    `-- DeadlineExceeded  the job's deadline has passed
"""


class PlanpaintError(Exception):
    """Root of the tree above."""


class RefusedInput(PlanpaintError):
    """Input that the caller must change. `field` is a JSON pointer without the leading slash, such as `size`."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class NotFound(PlanpaintError):
    """No such thing, or no longer."""


class Gone(NotFound):
    """It has been deleted, or its time is over."""


class Conflict(PlanpaintError):
    """The thing exists in a state that does not allow what was asked."""


class KeyReused(PlanpaintError):
    """An Idempotency-Key that belongs to a request with another body."""


class NotReady(PlanpaintError):
    """The thing exists and its result does not yet (or never will)."""


class LimitReached(PlanpaintError):
    """A limit of the caller's key. `policy` names it; `wait_ms`: then there is room, None when nobody can say."""

    def __init__(self, policy: str, detail: str, *, left: int, wait_ms: int | None) -> None:
        super().__init__(detail)
        self.policy = policy
        self.left = left
        self.wait_ms = wait_ms


class QueueFull(PlanpaintError):
    """The service has taken as many images as it may hold."""


class Unavailable(PlanpaintError):
    """A server that we depend on did not answer; the same call may work in a moment."""


class DataLost(Unavailable):
    """Redis answers, but not with what it held before. An operator must decide."""


class Misconfigured(PlanpaintError):
    """The process cannot start as configured; the message is one sentence for the operator."""


class BrokenCheckpoint(Misconfigured):
    """A file of the checkpoint is missing or damaged; the message names it."""


class LostLease(PlanpaintError):
    """The image was taken over, finished or canceled while this process worked on it."""


class ImageFailed(PlanpaintError):
    """An attempt at an image failed for a reason that can be told to its owner.

    `once`: a second failure with the same code ends the image, whatever attempts are left.
    `traceback`: for operators, of an error that was met elsewhere; "": that of the exception that is being handled.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, once: bool = False, traceback: str = ""
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable
        self.once = once
        self.traceback = traceback


class DeadlineExceeded(ImageFailed):
    """The deadline of the image's job has passed while a worker had it."""

    def __init__(self) -> None:
        super().__init__("deadline_exceeded", "the deadline of the job has passed")
