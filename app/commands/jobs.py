"""`planpaint jobs`: what there is, and what does not get on."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from app import wiring
from app.commands.shared import AS_JSON, DATA, print_json, say, with_redis
from app.connect import Client
from app.domain.job import Job
from app.domain.stuck import Place, is_stuck, waits_for
from app.settings import Settings
from app.store.overview import Overview
from app.views import timestamp


@click.command()
@click.option("--stuck", is_flag=True, help="images that do not get on, and what they wait for")
@click.option("--margin", type=click.FloatRange(0), default=10.0, show_default=True, help="seconds beyond their time")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@AS_JSON
@DATA
def jobs(stuck: bool, margin: float, limit: int, as_json: bool, data_dir: Path) -> None:
    """Print the newest jobs of all owners, or the images that are stuck. Prompts are not shown."""

    def show(_: Settings, client: Client) -> None:
        overview = wiring.overview(client)
        lines = _stuck(overview, client, round(margin * 1000)) if stuck else map(_job, overview.recent(limit + 1))
        found = list(islice(lines, limit + 1))
        if as_json:
            print_json({"data": found[:limit], "has_more": len(found) > limit})
            return
        for line in found[:limit]:
            click.echo("  ".join(str(value) for value in line.values() if value not in (None, "")))
        if len(found) > limit:
            say("there are more: --limit")

    with_redis(data_dir, show)


def _job(job: Job) -> dict[str, Any]:
    states = [image.state.value for image in job.images]
    return {
        "created_at": timestamp(job.created_at),
        "id": job.id,
        "status": job.status.value,
        "owner": job.owner,
        "priority": job.priority.value,
        "size": str(job.parameters.size),
        "images": ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
        "completed_at": timestamp(job.completed_at),
    }


def _stuck(overview: Overview, client: Client, margin_ms: int) -> Iterator[dict[str, Any]]:
    load, now = wiring.outlooks(client).load(), overview.now()
    for job in overview.unfinished():
        for place in overview.places(job):
            if is_stuck(place, job, load, now, margin_ms):
                yield _image(job, place, waits_for(place, load, now), now)


def _image(job: Job, place: Place, waits: str, now: int) -> dict[str, Any]:
    return {
        "image": f"{job.id}:{place.image.index}",
        "state": place.image.state.value,
        "since": timestamp(place.since),
        "for_s": round((now - place.since) / 1000, 1),
        "owner": job.owner,
        "worker": place.worker,
        "waits_for": waits,
    }
