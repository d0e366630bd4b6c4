"""When a job will be done, guessed from measured stage times. Never more than a guess: loads and sizes change."""

from dataclasses import dataclass

from app.domain.job import Job, Parameters
from app.domain.states import TERMINAL, ImageState

#: Tokens of the preview that AR plans before the large grid, about the same at any ratio.
_PREVIEW = 256


@dataclass(frozen=True, slots=True)
class Price:
    """What a job costs: AR tokens and denoising steps of all its images, and the pixels that they cover."""

    ar_tokens: int
    dit_steps: int
    pixels: int


@dataclass(frozen=True, slots=True)
class Load:
    """The service at one moment. Times are moving means in ms, by image and by unit; 0: not measured yet.

    An AR unit is one token, a DiT unit one step of one grid cell. `images`: how many have been measured.
    """

    queued: int = 0
    planning: int = 0
    planned: int = 0
    painting: int = 0
    ar_workers: int = 1
    dit_workers: int = 1
    ar_ms: float = 0.0
    ar_ms_per_unit: float = 0.0
    dit_ms: float = 0.0
    dit_ms_per_unit: float = 0.0
    images: int = 0


@dataclass(frozen=True, slots=True)
class Outlook:
    """`position`: images that wait before the job's first waiting one; None when none of its own waits.

    `seconds` until the job is done, or None while there is nothing to guess from; `measured`: images that it rests on.
    """

    position: int | None
    seconds: float | None
    measured: int


def price(parameters: Parameters, *, planned: bool = False) -> Price:
    """`planned`: a stored plan is painted again, so AR has nothing to do."""
    size, n = parameters.size, parameters.n
    tokens = 0 if planned else size.large_grid.tokens + size.preview_grid.tokens
    return Price(n * tokens, n * parameters.steps, n * size.pixels)


def outlook(job: Job, load: Load, *, position: int | None) -> Outlook:
    """`position`: images before the job's first waiting one in the queue that it waits in."""
    states = [image.state for image in job.images if image.state not in TERMINAL]
    if not states:
        return Outlook(None, None, load.images)
    if not (load.images and load.dit_workers and load.ar_workers):
        return Outlook(position, None, load.images)
    return Outlook(position, round(_ms(job.parameters, states, load, position or 0) / 1000, 1), load.images)


def _ms(parameters: Parameters, states: list[ImageState], load: Load, position: int) -> float:
    grid = parameters.size.large_grid
    ar = load.ar_ms_per_unit * (grid.tokens + _PREVIEW)
    dit = load.dit_ms_per_unit * grid.tokens * parameters.steps
    queued = states.count(ImageState.QUEUED)
    # Rows share a batch: as many are planned at once as are being planned now.
    planned_at = 0.0
    if queued:
        planned_at = (position + queued - 1) * load.ar_ms / max(load.planning, load.ar_workers) + ar
    elif ImageState.PLANNING in states:
        planned_at = ar / 2
    before = position
    if queued:
        before += load.planning + load.planned + load.painting
    painted_from = before * load.dit_ms / load.dit_workers
    mine = -(-len(states) // load.dit_workers)
    return max(planned_at, painted_from) + mine * dit
