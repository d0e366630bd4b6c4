"""Job and image records: the truth. Every change of a state is one Lua script."""

from dataclasses import dataclass
from typing import Any

from app import keys
from app.connect import Client, translated
from app.domain.access import NO_LIMITS, Limits, Usage
from app.domain.job import ANYBODY, Parameters, Priority, StoredObject, image_seed
from app.domain.messages import WEBHOOK_EVENTS, ImageRef, Lease, PaintOrder, PlanOrder
from app.domain.prior import Plan, PriorTokens, pack_all, unpack_all
from app.domain.sizes import Grid
from app.domain.states import ImageState
from app.errors import KeyReused, LimitReached, LostLease, NotFound, QueueFull
from app.store.quotas import WINDOW_MS
from app.store.reads import JobReads, pairs_of
from app.store.records import dump_request, load_request
from app.store.scripts import Scripts

#: Characters of a failure's message that are kept: ten of them must fit an event.
_MOST_REASON = 200


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's key, the SHA-256 of what came with it, and how long the pair is remembered, ms."""

    key: str
    fingerprint: str
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job has beside its parameters. Times in ms; `cancel_after_ms` counts from the creation."""

    priority: Priority = Priority.REALTIME
    webhook_url: str | None = None
    webhook_events: tuple[str, ...] = WEBHOOK_EVENTS
    owner: str = ANYBODY
    ttl_ms: int = 86_400_000
    cancel_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submit. `repeated`: the job was there already, made with the same idempotency key.

    `usage` is None for a repeat, which uses nothing.
    """

    job_id: str
    repeated: bool
    created_at: int
    deadline_ms: int | None
    images_ahead: int
    usage: Usage | None = None


class JobStore(JobReads):
    """All moves of jobs and images. Times in arguments are milliseconds; the server's clock decides."""

    def __init__(self, client: Client, *, lease_ms: int, hint_ms: int, max_attempts: int, max_queued: int = 0) -> None:
        super().__init__(client)
        self._scripts = Scripts(client)
        self._lease_ms = lease_ms
        self._hint_ms = hint_ms
        self._max_attempts = max_attempts
        self._max_queued = max_queued

    # --- callers

    def submit(
        self,
        job_id: str,
        parameters: Parameters,
        terms: Terms,
        *,
        metadata: dict[str, Any],
        inputs: tuple[str, ...] = (),
        reused: tuple[ImageRef, Plan] | None = None,
        idempotency: IdempotencyKey | None = None,
        limits: Limits = NO_LIMITS,
    ) -> Submitted:
        """Write the job with its images and hints. `inputs`: keys of condition images. `reused`: a plan; no AR then.

        Raises KeyReused when the idempotency key came with another request before, LimitReached when the owner has
        as much as its `limits` allow, and QueueFull.
        """
        ref, plan = reused or (None, None)
        packed: list[Any] = ["", "", "", ""]
        if plan:
            grid = plan.prior.grid
            packed = [plan.prior.pack(), grid.height, grid.width, pack_all(plan.condition)]
        indices = range(parameters.n)
        fields = {
            "request": dump_request(parameters, metadata, ref, inputs),
            "priority": terms.priority.value,
            "owner": terms.owner,
            "ttl_ms": terms.ttl_ms,
            "webhook_url": terms.webhook_url,
            # Commas around each, so that the scripts find a type by its text.
            "webhook_events": f",{','.join(terms.webhook_events)}," if terms.webhook_url else None,
        }
        after = "" if terms.cancel_after_ms is None else terms.cancel_after_ms
        key = idempotency or IdempotencyKey("", "", 0)
        with translated():
            reply = self._scripts.run(
                "submit",
                keys=[
                    keys.job(job_id),
                    keys.DUE,
                    keys.ar_stream(terms.priority),
                    keys.STATS,
                    keys.waiting(terms.priority),
                    keys.COUNTS,
                    keys.jobs_of(terms.owner),
                    keys.TRASH,
                    keys.WAITING_DIT,
                    keys.idempotency(terms.owner, key.key) if idempotency else keys.STATS,
                    keys.ACTIVE,
                    keys.line(terms.priority, terms.owner),
                    keys.turn(terms.priority, terms.owner),
                    keys.quota(terms.owner, "pixels"),
                    *(keys.image(job_id, index) for index in indices),
                ],
                args=[job_id, self._hint_ms, after, parameters.n, key.fingerprint, key.lifetime_ms]
                + packed
                + [terms.owner, parameters.n * parameters.size.pixels]
                + [limits.images, limits.pixels, self._max_queued, WINDOW_MS]
                + [image_seed(parameters.seed, index) for index in indices]
                + pairs_of(fields),
            )
        outcome, first, created_at, deadline, ahead, active, pixels_ms = reply.decode().split(" ")
        if outcome == "reused":
            raise KeyReused("this Idempotency-Key came with another request before")
        usage = Usage(int(active), int(pixels_ms))
        if outcome in ("queue", "images", "pixels"):
            raise self._refusal(outcome, limits, usage, parameters.n * parameters.size.pixels)
        deadline_ms = None if deadline == "-" else int(deadline)
        repeated = outcome == "repeat"
        return Submitted(first, repeated, int(created_at), deadline_ms, int(ahead), None if repeated else usage)

    def _refusal(self, limit: str, limits: Limits, usage: Usage, pixels: int) -> LimitReached | QueueFull:
        if limit == "queue":
            return QueueFull(f"{self._max_queued} images may wait here, and this job would be more")
        if limit == "images":
            detail = (
                f"{usage.images} images of this key have not ended; with this job they would be over {limits.images}"
            )
            return LimitReached("images", detail, left=max(0, limits.images - usage.images), wait_ms=None)
        detail = f"this key may ask for {limits.pixels} pixels a minute, and this job would be more"
        missing = -(-limits.pixels * usage.pixels_ms // WINDOW_MS)
        return LimitReached("pixels", detail, left=max(0, pixels - missing), wait_ms=usage.pixels_ms)

    def cancel(self, ref: ImageRef) -> ImageState:
        return self.cancel_all([ref])[0]

    def cancel_all(self, refs: list[ImageRef]) -> list[ImageState]:
        """Cancel images in one transaction; each one's state afterwards. Raises NotFound for an unknown one."""
        with translated():
            pipe = self._client.pipeline(transaction=True)
            for ref in refs:
                self._scripts.on_image("cancel", ref, client=pipe)
            states = pipe.execute()
        for ref, state in zip(refs, states, strict=True):
            if not state:
                raise NotFound(f"no image {ref.index} in job {ref.job_id}")
        return [ImageState(state.decode()) for state in states]

    # --- AR workers

    def claim_plan(self, ref: ImageRef, *, entry: str, token: str) -> PlanOrder | None:
        """Take the AR lease of the image that a stream entry names; None when there is nothing to do for it."""
        reply = self._claim("plan", ref, token, entry)
        if reply is None:
            return None
        fence, request, seed, *_, left = reply
        parameters, inputs = load_request(request)
        return PlanOrder(Lease(ref, fence), parameters, int(seed), inputs, _seconds(left))

    def hand_over(self, lease: Lease, plan: Plan) -> None:
        """Store the plan and move the image on to DiT. Raises LostLease."""
        grid, packed = plan.prior.grid, plan.prior.pack()
        condition = pack_all(plan.condition)
        with translated():
            done = self._scripts.on_image(
                "hand_over", lease.ref, lease.fence, packed, grid.height, grid.width, self._hint_ms, condition
            )
        if not done:
            raise LostLease(str(lease.ref))

    # --- DiT workers

    def claim_paint(self, ref: ImageRef, *, token: str) -> PaintOrder | None:
        """Take the DiT lease of a planned image; None when it is not to be had: done, leased, or not planned yet."""
        reply = self._claim("paint", ref, token, "")
        if reply is None:
            return None
        fence, request, seed, packed, height, width, condition, left = reply
        prior = PriorTokens.unpack(Grid(int(height), int(width)), packed)
        parameters, inputs = load_request(request)
        return PaintOrder(
            Lease(ref, fence), parameters, int(seed), prior, inputs, unpack_all(condition), _seconds(left)
        )

    def commit(self, lease: Lease, stored: StoredObject, *, steps: int) -> None:
        """Publish the uploaded object as the image's own. Raises LostLease: then the object is nobody's."""
        with translated():
            done = self._scripts.on_image(
                "commit",
                lease.ref,
                lease.fence,
                stored.key,
                stored.content_type,
                stored.size,
                stored.sha256,
                steps,
                stored.thumbnail or "",
                stored.step_cache or "",
            )
        if not done:
            raise LostLease(str(lease.ref))

    # --- any worker

    def _claim(self, move: str, ref: ImageRef, token: str, entry: str) -> list[Any] | None:
        with translated():
            reply: list[Any] = self._scripts.on_image("claim", ref, move, token, self._lease_ms, entry)
        return reply or None

    def renew(self, lease: Lease, *, step: int | None = None) -> None:
        """Keep the lease, and record the step reached. Raises LostLease."""
        with translated():
            kept = self._scripts.on_image("renew", lease.ref, lease.fence, self._lease_ms, "" if step is None else step)
        if not kept:
            raise LostLease(str(lease.ref))

    def canceled(self, leases: list[Lease]) -> list[Lease]:
        """Those whose image has been canceled and waits for its worker to let go."""
        if not leases:
            return []
        with translated():
            pipe = self._client.pipeline(transaction=False)
            for lease in leases:
                pipe.hget(keys.image(lease.ref.job_id, lease.ref.index), "state")
            states = pipe.execute()
        return [lease for lease, state in zip(leases, states, strict=True) if state == b"canceling"]

    def release(self, lease: Lease) -> ImageState | None:
        """Give the work back in good order: it moves to the last stored stage and no attempt is counted."""
        return self._give_back(lease, "release", "", "")

    def retry(
        self, lease: Lease, code: str, message: str, *, once: bool = False, traceback: str = ""
    ) -> ImageState | None:
        """End a failed attempt that may be repeated; past the limit the image fails with this reason.

        `once`: the limit is one attempt that failed with this code.
        """
        return self._give_back(lease, "retry_once" if once else "retry", code, message, traceback)

    def fail(self, lease: Lease, code: str, message: str, *, traceback: str = "") -> ImageState | None:
        """Fail the image for good."""
        return self._give_back(lease, "fail", code, message, traceback)

    def lose(self, lease: Lease, code: str, traceback: str) -> ImageState | None:
        """The process that holds it ends: as when the lease lapses, but at once and with a traceback."""
        return self._give_back(lease, "lose", code, "", traceback)

    def _give_back(self, lease: Lease, how: str, code: str, message: str, traceback: str = "") -> ImageState | None:
        with translated():
            state = self._scripts.on_image(
                "give_back",
                lease.ref,
                lease.fence,
                how,
                self._max_attempts,
                self._hint_ms,
                code,
                message[:_MOST_REASON],
                traceback,
            )
        return ImageState(state.decode()) if state else None

    # --- sweeper

    def due(self, limit: int) -> list[ImageRef]:
        """Images whose time to be looked at has come, by the server's clock."""
        with translated():
            seconds, microseconds = self._client.time()
            now = seconds * 1000 + microseconds // 1000
            members = self._client.zrange(keys.DUE, "-inf", now, byscore=True, offset=0, num=limit)
        return [ImageRef.parse(member.decode()) for member in members]

    def sweep(self, ref: ImageRef) -> tuple[str, ImageState | None]:
        """Put one due image right; returns what was done and its state (see sweep.lua)."""
        with translated():
            action, state = self._scripts.on_image("sweep", ref, self._lease_ms, self._hint_ms, self._max_attempts)
        return action.decode(), ImageState(state.decode()) if state else None


def _seconds(left: bytes) -> float | None:
    """Milliseconds as a script returns them, or nothing."""
    return int(float(left)) / 1000 if left else None
