"""`planpaint keys` and `planpaint webhook-secret`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from app import wiring
from app.commands.shared import AS_JSON, DATA, print_json, say, with_redis
from app.connect import Client
from app.domain.access import USUAL_SCOPES, ApiKey, LimitChanges, Scope
from app.settings import Settings
from app.views import timestamp


@click.group("webhook-secret", invoke_without_command=True)
@DATA
@click.pass_context
def webhook_secret(context: click.Context, data_dir: Path) -> None:
    """Print the secret that receivers verify webhooks with."""
    context.obj = data_dir
    if context.invoked_subcommand is None:
        with_redis(data_dir, lambda effective, client: click.echo(wiring.webhook_secrets(effective, client)[0]))


@webhook_secret.command("rotate")
@click.pass_obj
def webhook_secret_rotate(data_dir: Path) -> None:
    """Draw a new secret and print it; the old one signs beside it for PLANPAINT_WEBHOOK_OVERLAP_S."""
    with_redis(data_dir, lambda effective, client: click.echo(wiring.rotate_webhook_secret(effective, client)[0]))


@click.group("keys")
def keys() -> None:
    """API keys: who may call, and how much."""


@keys.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    help="may be repeated  [default: jobs:read and jobs:write]",
)
@click.option("--requests", type=click.IntRange(0), help="a minute, 0: no limit  [default: PLANPAINT_KEY_REQUESTS]")
@click.option("--images", type=click.IntRange(0), help="that have not ended  [default: PLANPAINT_KEY_IMAGES]")
@click.option("--pixels", type=click.IntRange(0), help="a minute, in all images  [default: PLANPAINT_KEY_PIXELS]")
@DATA
def keys_create(
    name: str,
    scopes: tuple[str, ...],
    requests: int | None,
    images: int | None,
    pixels: int | None,
    data_dir: Path,
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    if not (0 < len(name) <= 100 and name.isprintable()):
        raise click.UsageError("NAME must be 1 to 100 printable characters")

    def create(_: Settings, client: Client) -> None:
        chosen = [Scope(scope) for scope in scopes] or USUAL_SCOPES
        key, secret = wiring.api_keys(client).create(name, chosen, LimitChanges(requests, images, pixels))
        say(f"{key.id} for {name}: {', '.join(sorted(key.scopes))}")
        click.echo(secret)

    with_redis(data_dir, create)


@keys.command("list")
@AS_JSON
@DATA
def keys_list(as_json: bool, data_dir: Path) -> None:
    """Print all keys, without their secrets."""

    def show(_: Settings, client: Client) -> None:
        found = [_shown(key) for key in wiring.api_keys(client).list()]
        if as_json:
            print_json({"data": found})
            return
        for key in found:
            limits = [f"{name}={value}" for name, value in key["limits"].items() if value is not None]
            state = f"revoked {key['revoked_at']}" if key["revoked_at"] else "active"
            click.echo("  ".join([key["id"], state, ",".join(key["scopes"]), *limits, key["name"]]))

    with_redis(data_dir, show)


@keys.command("revoke")
@click.argument("key_id")
@DATA
def keys_revoke(key_id: str, data_dir: Path) -> None:
    """End a key, by its id; every API process refuses it within two seconds. Its jobs go on."""
    with_redis(data_dir, lambda _, client: say(f"{wiring.api_keys(client).revoke(key_id).id} is revoked"))


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "limits": asdict(key.limits),
        "created_at": timestamp(key.created_at),
        "revoked_at": timestamp(key.revoked_at),
    }
