"""All checks in order, and how they are printed."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import click

from app import settings as settings_module
from app.doctor import engines, host
from app.doctor.finding import Finding
from app.errors import Misconfigured
from app.launcher.stack import running_environment
from app.settings import PREFIX, Settings

_MARKS = {
    "ok": click.style(" ok ", fg="green"),
    "note": click.style("note", fg="yellow"),
    "fail": click.style("FAIL", fg="red"),
}


def run(settings: Settings, data: Path, *, as_json: bool) -> int:
    """Check and print; 0 when nothing failed, else 1. `settings` have pinned this process already, if they do."""
    running = running_environment(data)
    environment = running | {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    if running:
        settings = settings_module.load(environment)
    found = []
    for finding in _findings(settings, environment, data, running=bool(running)):
        found.append(finding)
        if not as_json:
            click.echo(f"{_MARKS[finding.status]}  {finding.name:16}  {finding.detail}")
            if finding.todo:
                click.echo(f"{'':24}-> {finding.todo}")
    failed = [finding.name for finding in found if finding.status == "fail"]
    roles = _roles(found)
    if as_json:
        report = {"ok": not failed, "can_run": roles, "findings": [asdict(finding) for finding in found]}
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(f"\nthis host can run: {', '.join(roles) or 'nothing'}")
    return 1 if failed else 0


def _findings(settings: Settings, environment: dict[str, str], data: Path, *, running: bool) -> Iterator[Finding]:
    yield from host.software()
    yield from host.compiler(settings.graph)
    yield from host.checkpoint(settings)
    yield from host.servers(settings, environment)
    yield from host.place(settings, data, running=running)
    if find_spec("torch") is None:
        return
    yield from engines.present()
    try:
        yield from engines.chosen(settings)
    except Misconfigured as error:
        yield Finding("picked", "fail", str(error), "set PLANPAINT_DEVICE, PLANPAINT_DEVICE_INDEX or PLANPAINT_DTYPE")
        return
    yield from engines.work(settings)


def _roles(found: list[Finding]) -> list[str]:
    status = {finding.name: finding.status for finding in found}
    roles = ["courier", "sweeper"]
    if status.get("checkpoint ar") == "ok":
        roles.insert(0, "api")  # it counts prompt tokens with that stage's tokenizer
    roles += [stage for stage in ("ar", "dit") if status.get(f"self-test {stage}") == "ok"]
    if {"api", "ar", "dit"} <= set(roles) and all(
        status[name] == "ok" for name in ("redis", "object storage", "data folder", "port")
    ):
        roles.append("up")
    return roles
