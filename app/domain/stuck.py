"""Which images are not getting on, and what they wait for."""

from dataclasses import dataclass

from app.domain.estimate import Load
from app.domain.job import Image, Job
from app.domain.states import LEASED, ImageState

#: An image that takes so many times as long as others have is stuck.
_PATIENCE = 5
#: Tokens of the preview that AR plans before the large grid (see estimate.py).
_PREVIEW = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where an image is. Times are server ms; `ahead`: images before it in its queue; `worker`: that has it, or ""."""

    image: Image
    since: int
    due: float | None
    ahead: int | None = None
    worker: str = ""


def waits_for(place: Place, load: Load, now: int) -> str:
    """One sentence for the operator."""
    image, state = place.image, place.image.state
    if place.due is None:
        return "nothing: no look of the sweeper is planned for it (planpaint check)"
    if place.due < now:
        what = "lease ended" if state in LEASED else "time to be looked at came"
        return f"a sweeper: its {what} {(now - place.due) / 1000:.0f} s ago; does one run?"
    if state in LEASED:
        step = f", step {image.step}" if image.step else ""
        return f"{place.worker or 'its worker'}{step}; the lease ends in {(place.due - now) / 1000:.0f} s"
    role, workers = ("ar", load.ar_workers) if state is ImageState.QUEUED else ("dit", load.dit_workers)
    if not workers:
        return f"a worker of {role}: none has been heard of in the last minute"
    turn = f", {place.ahead} images before it" if place.ahead else ""
    return f"one of {workers} workers of {role}{turn}"


def is_stuck(place: Place, job: Job, load: Load, now: int, margin_ms: int) -> bool:
    """Its lease or look lies further back than the margin, or it has stayed for much longer than images do."""
    if place.due is None or place.due < now - margin_ms:
        return True
    return now - place.since > margin_ms + _PATIENCE * _usual_ms(place, job, load)


def _usual_ms(place: Place, job: Job, load: Load) -> float:
    """What its stage takes as a rule, the images before it included; 0 while none has been measured."""
    tokens = job.parameters.size.large_grid.tokens
    state, ahead = place.image.state, place.ahead or 0
    if state is ImageState.QUEUED:
        return (ahead + 1) * load.ar_ms / max(1, load.ar_workers)
    if state is ImageState.PLANNED:
        return (ahead + 1) * load.dit_ms / max(1, load.dit_workers)
    if place.image.prior_grid is None:
        return load.ar_ms_per_unit * (tokens + _PREVIEW)
    return load.dit_ms_per_unit * tokens * job.parameters.steps
