"""What several commands share: options, output, and a client for the stack that they are about."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import click

from app import settings, wiring
from app.connect import Client
from app.errors import Misconfigured, Unavailable
from app.launcher.stack import running_environment
from app.settings import PREFIX, Settings

DATA = click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), default=Path("data"), show_default=True
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="one JSON object")


def say(line: str) -> None:
    """To the person at the terminal, beside what goes to stdout."""
    click.echo(line, err=True)


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1))


def with_redis(data_dir: Path, call: Callable[[Settings, Client], None]) -> None:
    """Call with the settings of the stack that runs in this folder, or those of the environment."""
    environment = running_environment(data_dir) | {n: v for n, v in os.environ.items() if n.startswith(PREFIX)}
    effective = settings.load(environment)
    try:
        call(effective, wiring.api_client(effective))
    except Unavailable as error:
        raise Misconfigured(
            f"no Redis answers ({error}); start the stack, name its --data-dir, or set {PREFIX}REDIS_URL"
        ) from error
