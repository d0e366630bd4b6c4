"""`planpaint drain`: have workers finish what they have and take nothing new."""

import time
from pathlib import Path

import click

from app import wiring
from app.commands.shared import AS_JSON, DATA, print_json, say, with_redis
from app.connect import Client
from app.errors import Conflict, NotFound
from app.settings import Settings
from app.store.workers import WorkerInfo, WorkerRegistry, of_role

#: Roles whose work takes long enough to be waited for; the others end within seconds of a TERM.
_ROLES = ("ar", "dit")


@click.command()
@click.argument("worker", required=False)
@click.option("--role", type=click.Choice(_ROLES), help="all workers of this role, also those to come")
@click.option("--undo", is_flag=True, help="let them work again")
@click.option("--list", "listing", is_flag=True, help="print what is drained")
@click.option("--wait", "wait_s", type=click.FloatRange(0), help="seconds to wait until they hold nothing")
@AS_JSON
@DATA
def drain(
    worker: str | None,
    role: str | None,
    undo: bool,
    listing: bool,
    wait_s: float | None,
    as_json: bool,
    data_dir: Path,
) -> None:
    """Have a worker finish what it has, take nothing new, and end with status 0.

    WORKER is an instance (PLANPAINT_INSTANCE; `role@host` by default) or the name of one process, as /v1/workers lists
    them. One that is started again under a drained name waits until --undo.
    """
    if (worker is not None) + (role is not None) + listing != 1:
        raise click.UsageError("name a WORKER, a --role, or say --list")

    def call(_: Settings, client: Client) -> None:
        registry = wiring.registry(client)
        if listing:
            names = registry.drained()
            print_json({"drained": names}) if as_json else click.echo("\n".join(names), nl=bool(names))
            return
        name = of_role(role) if role else str(worker)
        concerned = _concerned(registry, name)
        if undo:
            if not registry.undrain([name]):
                raise NotFound(f"{name} is not drained")
        else:
            if not (concerned or role):
                raise NotFound(f"no worker {name} of {' or '.join(_ROLES)} has been heard of in the last minute")
            registry.drain([name])
        left = _wait(registry, name, wait_s) if wait_s is not None and not undo else concerned
        if as_json:
            print_json({"name": name, "drained": not undo, "workers": [each.name for each in concerned]})
        else:
            what = "may work again" if undo else "finishes what it has"
            for each in concerned:
                say(f"{each.name} ({each.instance}) {what}")
        if wait_s is not None and left and not undo:
            raise Conflict(f"after {wait_s:g} s still at work: {', '.join(each.name for each in left)}")

    with_redis(data_dir, call)


def _concerned(registry: WorkerRegistry, name: str) -> list[WorkerInfo]:
    return [
        each
        for each in registry.list()
        if each.role in _ROLES and name in (each.name, each.instance, of_role(each.role))
    ]


def _wait(registry: WorkerRegistry, name: str, wait_s: float) -> list[WorkerInfo]:
    """Workers that still run, or load their model, when the time is up."""
    deadline = time.monotonic() + wait_s
    while left := [each for each in _concerned(registry, name) if each.state != "drained"]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left
