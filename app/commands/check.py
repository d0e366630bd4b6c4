"""`planpaint check`: whether what must hold does."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from app import wiring
from app.commands.shared import AS_JSON, DATA, print_json, say, with_redis
from app.connect import Client
from app.invariants.run import Objects
from app.settings import Settings


@click.command()
@click.option(
    "--objects",
    type=click.Choice(["sample", "all", "none"]),
    default="sample",
    show_default=True,
    help="sample: 50 are read and compared; all: each one's presence and size",
)
@AS_JSON
@DATA
def check(objects: Objects, as_json: bool, data_dir: Path) -> None:
    """Verify the invariants of a live service; exit status 1 when one is broken. Changes nothing.

    Run it with the settings of the workers: their times say how late a look of the sweeper may be.
    """

    def call(effective: Settings, client: Client) -> None:
        report = wiring.checker(effective, client).run(objects)
        counts = {"jobs": report.jobs, "images": report.images, "objects": report.objects}
        if as_json:
            violations = [asdict(each) for each in report.violations]
            print_json({"ok": not violations, "checked": counts, "violations": violations})
        else:
            for each in report.violations:
                click.echo(f"{each.check}: {each.subject}: {each.detail}")
            looked = ", ".join(f"{number} {name}" for name, number in counts.items())
            say(f"{looked}: {len(report.violations) or 'nothing'} wrong")
        if report.violations:
            sys.exit(1)

    with_redis(data_dir, call)
