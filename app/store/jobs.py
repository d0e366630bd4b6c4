"""Job and image records: the truth. Every change of a state is one Lua script."""

from dataclasses import dataclass
from typing import Any

from app import keys
from app.connect import Client, translated
from app.domain.job import Job, Parameters, Priority, StoredObject, image_seed
from app.domain.messages import Event, ImageRef, Lease, PaintOrder, PlanOrder
from app.domain.prior import Plan, PriorTokens, pack_all, unpack_all
from app.domain.sizes import Grid
from app.domain.states import ImageState
from app.errors import LostLease, NotFound
from app.store.records import IMAGE_FIELDS, dump_request, load_job, load_request
from app.store.scripts import Scripts


@dataclass(frozen=True, slots=True)
class Server:
    """The Redis or Valkey behind a store. `compatible`: the version of Redis that it stands for."""

    name: str
    version: str
    compatible: str
    eviction: str
    durable: bool


class JobStore:
    """All moves of jobs and images. Times in arguments are milliseconds; the server's clock decides."""

    def __init__(self, client: Client, *, lease_ms: int, hint_ms: int, max_attempts: int) -> None:
        self._client = client
        self._scripts = Scripts(client)
        self._lease_ms = lease_ms
        self._hint_ms = hint_ms
        self._max_attempts = max_attempts

    # --- callers

    def submit(
        self,
        job_id: str,
        parameters: Parameters,
        *,
        priority: Priority,
        webhook_url: str | None,
        metadata: dict[str, Any],
        inputs: tuple[str, ...] = (),
        reused: tuple[ImageRef, Plan] | None = None,
    ) -> None:
        """Write the job with its images and hints. `inputs`: keys of condition images. `reused`: a plan; no AR then."""
        ref, plan = reused or (None, None)
        packed: list[Any] = ["", "", "", ""]
        if plan:
            grid = plan.prior.grid
            packed = [plan.prior.pack(), grid.height, grid.width, pack_all(plan.condition)]
        indices = range(parameters.n)
        with translated():
            self._scripts.run(
                "submit",
                keys=[keys.job(job_id), keys.DUE, keys.ar_stream(priority), keys.STATS]
                + [keys.image(job_id, index) for index in indices],
                args=[
                    job_id,
                    dump_request(parameters, metadata, ref, inputs),
                    webhook_url or "",
                    priority.value,
                    self._hint_ms,
                ]
                + packed
                + [image_seed(parameters.seed, index) for index in indices],
            )

    def get(self, job_id: str) -> Job:
        with translated():
            fields = self._client.hgetall(keys.job(job_id))
            if not fields:
                raise NotFound(f"no job {job_id}")
            pipe = self._client.pipeline(transaction=True)
            for index in range(int(fields[b"n"])):
                pipe.hmget(keys.image(job_id, index), IMAGE_FIELDS)
            images = pipe.execute()
        return load_job(job_id, fields, images)

    def plan(self, ref: ImageRef) -> Plan | None:
        """The stored plan; None while AR has not finished. Raises NotFound for an unknown image."""
        with translated():
            state, packed, height, width, condition = self._client.hmget(
                keys.image(ref.job_id, ref.index), "state", "prior", "prior_height", "prior_width", "condition"
            )
        if state is None:
            raise NotFound(f"no image {ref.index} in job {ref.job_id}")
        if packed is None:
            return None
        return Plan(PriorTokens.unpack(Grid(int(height), int(width)), packed), unpack_all(condition))

    def cancel(self, ref: ImageRef) -> ImageState:
        with translated():
            state = self._scripts.on_image("cancel", ref)
        if not state:
            raise NotFound(f"no image {ref.index} in job {ref.job_id}")
        return ImageState(state.decode())

    def event(self, job_id: str, sequence: int) -> Event | None:
        with translated():
            entries = self._client.xrange(keys.events(job_id), f"{sequence}-0", f"{sequence}-0")
        if not entries:
            return None
        fields = entries[0][1]
        index = fields[b"index"]
        return Event(
            job_id=job_id,
            sequence=sequence,
            type=fields[b"type"].decode(),
            timestamp=int(fields[b"timestamp"]),
            index=int(index) if index else None,
        )

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

    def release(self, lease: Lease) -> ImageState | None:
        """Give the work back in good order: it moves to the last stored stage and no attempt is counted."""
        return self._give_back(lease, "release", "", "")

    def retry(self, lease: Lease, code: str, message: str, *, once: bool = False) -> ImageState | None:
        """End a failed attempt that may be repeated; past the limit the image fails with this reason.

        `once`: the limit is one attempt that failed with this code.
        """
        return self._give_back(lease, "retry_once" if once else "retry", code, message)

    def fail(self, lease: Lease, code: str, message: str) -> ImageState | None:
        """Fail the image for good."""
        return self._give_back(lease, "fail", code, message)

    def _give_back(self, lease: Lease, how: str, code: str, message: str) -> ImageState | None:
        with translated():
            state = self._scripts.on_image(
                "give_back", lease.ref, lease.fence, how, self._max_attempts, self._hint_ms, code, message
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

    # --- observers

    def stats(self) -> dict[str, int]:
        """Totals since the store was made, and what waits now."""
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.hgetall(keys.STATS)
            pipe.xlen(keys.AR_REALTIME)
            pipe.xlen(keys.AR_BATCH)
            pipe.llen(keys.DIT_LIST)
            pipe.zcard(keys.DUE)
            pipe.zcard(keys.OUTBOX)
            totals, realtime, batch, dit_hints, active, outbox = pipe.execute()
        waiting = {
            "ar_hints": realtime + batch,
            "dit_hints": dit_hints,
            "images_active": active,
            "webhooks_waiting": outbox,
        }
        return {name.decode(): int(value) for name, value in totals.items()} | waiting

    def server(self) -> Server:
        with translated():
            found = self._client.info("everything")
        is_valkey = "valkey_version" in found
        return Server(
            name="valkey" if is_valkey else "redis",
            version=str(found["valkey_version" if is_valkey else "redis_version"]),
            compatible=str(found["redis_version"]),
            eviction=str(found["maxmemory_policy"]),
            durable=bool(found["aof_enabled"]),
        )

    def ping(self) -> None:
        with translated():
            self._client.ping()


def _seconds(left: bytes) -> float | None:
    """Milliseconds as a script returns them, or nothing."""
    return int(float(left)) / 1000 if left else None
