"""The command `planpaint`."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from api.prompts import PromptLimit
from app import __version__, logs, settings, wiring
from app.checkpoint import AR_PARTS, DEMO, DIT_PARTS, Checkpoint
from app.connect import Client
from app.devices import limit_threads, pin
from app.domain.access import USUAL_SCOPES, ApiKey, LimitChanges, Scope
from app.errors import Misconfigured, PlanpaintError, Unavailable
from app.launcher.child import EX_AGAIN, EX_CONFIG
from app.launcher.interrupt import Interrupted, raise_on_signals
from app.launcher.stack import Stack, running_environment
from app.settings import GRAPHS, PREFIX, Settings, address
from app.views import timestamp

_DATA = click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), default=Path("data"), show_default=True
)
_DEVICE_INDEX = click.option(
    "--device-index",
    type=click.IntRange(0, 1023),
    help="the one device that it sees  [default: all, and takes the first]",
)

#: Of a process that another one starts as a further rank of its group; see app/ranks.py.
_RANK = click.option("--rank", type=int, default=0, hidden=True)
_RENDEZVOUS = click.option("--rendezvous", type=int, default=0, hidden=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Serve hybrid AR + diffusion image models: HTTP jobs in, pictures in object storage out."""


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), help="port of the API  [default: PLANPAINT_API_PORT or 8000]")
@_DATA
@click.option("--dit-workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--checkpoint", type=click.Path(path_type=Path, file_okay=False), help="default: the demo checkpoint")
def up(port: int | None, data_dir: Path, dit_workers: int, checkpoint: Path | None) -> None:
    """Run the whole stack in the foreground until Ctrl-C."""
    overrides = {PREFIX + "API_PORT": str(port)} if port else {}
    if checkpoint:
        overrides[PREFIX + "CHECKPOINT"] = str(checkpoint.absolute())
    raise_on_signals()
    try:
        with Stack(data_dir, overrides=overrides, dit_workers=dit_workers, say=_say) as stack:
            click.echo(f"ready {stack.api_url}")
            while True:
                stack.revive()
                time.sleep(0.5)
    except Interrupted:
        return


def _say(line: str) -> None:
    click.echo(line, err=True)


def _role(name: str, **options: object) -> Settings:
    # Into the environment, where the process's own children find them.
    os.environ.update({PREFIX + key: str(value) for key, value in options.items() if value is not None})
    effective = settings.load()
    logs.configure(effective, name)
    return effective


def _leave(status: int = 0) -> NoReturn:
    """End without the interpreter's own teardown: with torch loaded it takes seconds, and all is stored by now."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


@cli.command()
def api() -> None:
    """Run the HTTP API (gunicorn with gevent)."""
    effective = settings.load()
    # Here it is one sentence and the right exit status; inside gunicorn it would be a traceback of each worker.
    PromptLimit.of(effective)
    _refuse_without_keys(effective)
    # A new process image: gevent must patch the standard library before anything has imported it.
    os.execv(  # noqa: S606 - our own interpreter with our own arguments
        sys.executable,
        [
            sys.executable,
            "-m",
            "gunicorn",
            "api.application:create()",
            f"--bind={address(effective.api_host, effective.api_port).removeprefix('http://')}",
            f"--workers={effective.api_processes}",
            "--worker-class=api.server.Worker",
            "--worker-connections=1000",
            "--timeout=60",
            "--graceful-timeout=5",
            "--no-control-socket",
            "--name=planpaint-api",
            f"--log-level={effective.log_level}",
        ],
    )


def _refuse_without_keys(effective: Settings) -> None:
    """A service that nobody could use is a mistake, and an open one is not made by mistake."""
    if not effective.needs_keys:
        return
    try:
        if wiring.api_keys(wiring.api_client(effective)).any():
            return
    except Unavailable:
        # It lets nobody in until Redis knows a key.
        return
    raise Misconfigured(
        f"there is no API key yet, and a service on {effective.api_host} is to ask for one: run "
        f"`planpaint keys create NAME` first, or set {PREFIX}API_KEYS=off when something before it knows the callers"
    )


def _worker(name: str, **options: object) -> Settings:
    """The settings of a worker, its process pinned to its device."""
    effective = _role(name, **options)
    if effective.device_index is not None:
        pin(effective.device_index)
    return effective


@cli.command()
@click.option("--tp", type=click.IntRange(1, 64), help="devices that share the model  [default: PLANPAINT_AR_TP or 1]")
@click.option("--graph", type=click.Choice(GRAPHS), help="how a step is run  [default: PLANPAINT_GRAPH or auto]")
@_DEVICE_INDEX
@_RANK
@_RENDEZVOUS
def ar(tp: int | None, graph: str | None, device_index: int | None, rank: int, rendezvous: int) -> None:
    """Run one AR worker: plans images in one batch on one device, or on as many as --tp says."""
    effective = _worker("ar", AR_TP=tp, GRAPH=graph, DEVICE_INDEX=device_index)
    # Before torch is loaded, which takes seconds.
    Checkpoint(effective.checkpoint).verify(AR_PARTS)
    if rank:
        from workers import ar_backend

        ar_backend.follow(effective, rank, rendezvous)
    else:
        from workers import ar as worker

        worker.run(effective)
    _leave()


@cli.command()
@click.option("--sp", type=click.IntRange(1, 64), help="devices that share an image  [default: PLANPAINT_DIT_SP or 1]")
@click.option("--cfg-parallel", is_flag=True, default=None, help="the CFG branches on two devices, or groups of --sp")
@click.option("--step-cache", metavar="first-block:THRESHOLD", help="reuse blocks' work at steps that change little")
@_DEVICE_INDEX
@_RANK
@_RENDEZVOUS
def dit(
    sp: int | None,
    cfg_parallel: bool | None,
    step_cache: str | None,
    device_index: int | None,
    rank: int,
    rendezvous: int,
) -> None:
    """Run one DiT worker: paints one image at a time, on one device or spread over several."""
    effective = _worker(
        "dit", DIT_SP=sp, DIT_CFG_PARALLEL=cfg_parallel, STEP_CACHE=step_cache, DEVICE_INDEX=device_index
    )
    # Before torch is loaded, which takes seconds.
    Checkpoint(effective.checkpoint).verify(DIT_PARTS)
    if rank:
        from workers import dit_engine

        dit_engine.follow(effective, rank, rendezvous)
        _leave()
    from workers import dit as worker

    _leave(EX_AGAIN if worker.run(effective) else 0)


@cli.command()
def courier() -> None:
    """Run the courier: delivers webhooks."""
    effective = _role("courier")
    from workers import courier as worker

    worker.run(effective)


@cli.command()
def sweeper() -> None:
    """Run the sweeper: recovers the work of dead workers."""
    effective = _role("sweeper")
    from workers import sweeper as worker

    worker.run(effective)


@cli.group()
def config() -> None:
    """Settings."""


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def config_show(as_json: bool) -> None:
    """Print the effective settings, secrets masked."""
    shown = settings.load().shown()
    if as_json:
        click.echo(json.dumps(shown, indent=1))
        return
    for name, value in shown.items():
        click.echo(f"{PREFIX}{name.upper()}={'' if value is None else value}")


@cli.group("webhook-secret", invoke_without_command=True)
@_DATA
@click.pass_context
def webhook_secret(context: click.Context, data_dir: Path) -> None:
    """Print the secret that receivers verify webhooks with."""
    context.obj = data_dir
    if context.invoked_subcommand is None:
        _with_redis(data_dir, lambda effective, client: click.echo(wiring.webhook_secrets(effective, client)[0]))


@webhook_secret.command("rotate")
@click.pass_obj
def webhook_secret_rotate(data_dir: Path) -> None:
    """Draw a new secret and print it; the old one signs beside it for PLANPAINT_WEBHOOK_OVERLAP_S."""
    _with_redis(data_dir, lambda effective, client: click.echo(wiring.rotate_webhook_secret(effective, client)[0]))


@cli.group("keys")
def keys_() -> None:
    """API keys: who may call, and how much."""


@keys_.command("create")
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
@_DATA
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
        _say(f"{key.id} for {name}: {', '.join(sorted(key.scopes))}")
        click.echo(secret)

    _with_redis(data_dir, create)


@keys_.command("list")
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@_DATA
def keys_list(as_json: bool, data_dir: Path) -> None:
    """Print all keys, without their secrets."""

    def show(_: Settings, client: Client) -> None:
        found = [_shown(key) for key in wiring.api_keys(client).list()]
        if as_json:
            click.echo(json.dumps({"data": found}, indent=1))
            return
        for key in found:
            limits = [f"{name}={value}" for name, value in key["limits"].items() if value is not None]
            state = f"revoked {key['revoked_at']}" if key["revoked_at"] else "active"
            click.echo("  ".join([key["id"], state, ",".join(key["scopes"]), *limits, key["name"]]))

    _with_redis(data_dir, show)


@keys_.command("revoke")
@click.argument("key_id")
@_DATA
def keys_revoke(key_id: str, data_dir: Path) -> None:
    """End a key, by its id; every API process refuses it within two seconds. Its jobs go on."""
    _with_redis(data_dir, lambda _, client: _say(f"{wiring.api_keys(client).revoke(key_id).id} is revoked"))


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "limits": asdict(key.limits),
        "created_at": timestamp(key.created_at),
        "revoked_at": timestamp(key.revoked_at),
    }


def _with_redis(data_dir: Path, call: Callable[[Settings, Client], None]) -> None:
    """Call with the settings of the stack that runs in this folder, or those of the environment."""
    environment = running_environment(data_dir) | {n: v for n, v in os.environ.items() if n.startswith(PREFIX)}
    effective = settings.load(environment)
    try:
        call(effective, wiring.api_client(effective))
    except Unavailable as error:
        raise Misconfigured(
            f"no Redis answers ({error}); start the stack, name its --data-dir, or set {PREFIX}REDIS_URL"
        ) from error


@cli.command("make-checkpoint")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def make_checkpoint(folder: Path) -> None:
    """Write a tiny random checkpoint of the real classes, for tests."""
    from app import tiny_checkpoint

    tiny_checkpoint.make(folder)


@cli.command()
@_DATA
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
def doctor(data_dir: Path, as_json: bool) -> None:
    """Say what this host can run, with a self-test of each stage; exit status 1 when something must be mended."""
    from app.doctor import report

    effective = settings.load()
    logs.configure(effective, "doctor")
    if effective.device_index is not None:
        pin(effective.device_index)
    sys.exit(report.run(effective, data_dir, as_json=as_json))


@cli.group()
def bench() -> None:
    """Measure, beside an alternative in the same run."""


@bench.command("ar")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
def bench_ar(as_json: bool) -> None:
    """The AR engine against transformers' generate(), on the same weights and threads."""
    from app.bench import ar as module

    limit_threads(settings.load().threads or 1)
    sys.exit(module.run(as_json))


@bench.command("dit")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
def bench_dit(as_json: bool) -> None:
    """The DiT engine against the reference pipeline, a bare loop, and itself spread over processes."""
    from app.bench import dit as module

    limit_threads(settings.load().threads or 1)
    sys.exit(module.run(as_json))


@bench.command("serve")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
def bench_serve(as_json: bool) -> None:
    """The whole service by HTTP against the reference pipeline and against what two cores could do at most."""
    from app.bench import serve as module

    raise_on_signals()
    sys.exit(module.run(as_json))


@bench.command("demo")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=DEMO,
    help="default: the packaged one",
)
@click.option(
    "--prompts", type=click.IntRange(1, 10_000), default=100, show_default=True, help="held-out prompts a row"
)
@click.option("--row", "rows", multiple=True, help="only this row, such as 256x256, any or edits; may be repeated")
@click.option("--sheet", type=click.Path(path_type=Path, dir_okay=False), help="write a contact sheet")
def bench_demo(as_json: bool, checkpoint: Path, prompts: int, rows: tuple[str, ...], sheet: Path | None) -> None:
    """How much of what the demo checkpoint is asked for it draws right, judged from the pixels."""
    from app.bench import demo as module

    if unknown := set(rows) - set(module.ROWS):
        raise click.BadParameter(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(module.ROWS)}")
    raise_on_signals()
    result = module.run(checkpoint, prompts, rows or tuple(module.ROWS), sheet, click.echo)
    if as_json:
        click.echo(module.as_json(result))
    sys.exit(1 if result.missed() else 0)


@bench.command("api")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
def bench_api(as_json: bool) -> None:
    """Submitting jobs over one API process, against a Flask view that does one bare XADD."""
    from app.bench import api as module

    sys.exit(module.run(as_json))


@cli.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo"), show_default=True)
def demo(out: Path) -> None:
    """Start the stack, draw eight pictures, show them, stop the stack."""
    from app import demo as module

    raise_on_signals()
    sys.exit(0 if module.run(out) else 1)


def main() -> NoReturn:
    """Run the command; an error that was foreseen is one sentence on stderr."""
    try:
        cli.main(standalone_mode=False)
    except Misconfigured as error:
        _say(f"planpaint: {error}")
        sys.exit(EX_CONFIG)
    except PlanpaintError as error:
        _say(f"planpaint: {error}")
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, Interrupted, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
