"""The command: run once, print, and say by the exit status whether everything held."""

import click

from app.bench.chaos import report
from app.bench.chaos.run import Plan
from app.bench.chaos.run import run as attack

#: Kills of roles by second, so that two minutes have sixty and some.
_KILLS_BY_SECOND = 0.55


def run(*, jobs: int, seconds: float, seed: int, as_json: bool) -> int:
    """0 when nothing was lost, duplicated, stuck, missing, changed or wrong, and enough was killed; else 1."""
    for line in report.conditions():
        click.echo(line)
    kills = round(seconds * _KILLS_BY_SECOND)
    click.echo(
        f"settings  tiny checkpoint, 2 APIs, 2 AR and 2 DiT workers, {jobs} jobs, "
        f"{kills} kills of roles in {seconds:g} s, seed {seed}"
    )
    verdict = attack(Plan(jobs, seconds, seed, kills), click.echo)
    for line in report.lines(verdict):
        click.echo(line)
    if as_json:
        click.echo(report.as_json(verdict))
    return 0 if verdict.holds and report.enough(verdict) else 1
