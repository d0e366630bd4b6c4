"""The command `planpaint`."""

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from api.prompts import PromptLimit
from app import __version__, logs, settings, wiring
from app.checkpoint import AR_PARTS, DEMO, DIT_PARTS, Checkpoint
from app.commands.check import check
from app.commands.dead import dead
from app.commands.drain import drain
from app.commands.jobs import jobs
from app.commands.keys import keys, webhook_secret
from app.commands.shared import DATA, say
from app.devices import limit_threads, pin
from app.errors import Misconfigured, PlanpaintError, Unavailable
from app.launcher.child import EX_AGAIN, EX_CONFIG
from app.launcher.interrupt import Interrupted, raise_on_signals
from app.launcher.stack import Stack
from app.settings import GRAPHS, PREFIX, Settings, address

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
@DATA
@click.option("--dit-workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--checkpoint", type=click.Path(path_type=Path, file_okay=False), help="default: the demo checkpoint")
def up(port: int | None, data_dir: Path, dit_workers: int, checkpoint: Path | None) -> None:
    """Run the whole stack in the foreground until Ctrl-C."""
    overrides = {PREFIX + "API_PORT": str(port)} if port else {}
    if checkpoint:
        overrides[PREFIX + "CHECKPOINT"] = str(checkpoint.absolute())
    raise_on_signals()
    try:
        with Stack(data_dir, overrides=overrides, dit_workers=dit_workers, say=say) as stack:
            click.echo(f"ready {stack.api_url}")
            while True:
                stack.revive()
                time.sleep(0.5)
    except Interrupted:
        return


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
            # Longer than proxies and load balancers keep a connection (nginx and AWS: 60 s). Who closes first loses
            # nothing; a request that is sent while the other side closes is lost.
            "--keep-alive=75",
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


@contextmanager
def _large_imports() -> Iterator[None]:
    """Around imports of torch and the like, all of which stays: the garbage collector need not look at it, ever.

    It would do so again and again while they go on, which is a fifth of their time, and in every long look later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
    with _large_imports():
        from workers import ar as worker
        from workers import ar_backend
    if rank:
        ar_backend.follow(effective, rank, rendezvous)
    else:
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
    with _large_imports():
        from workers import dit as worker
        from workers import dit_engine
    if rank:
        dit_engine.follow(effective, rank, rendezvous)
        _leave()
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


@cli.command("make-checkpoint")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def make_checkpoint(folder: Path) -> None:
    """Write a tiny random checkpoint of the real classes, for tests."""
    from app import tiny_checkpoint

    tiny_checkpoint.make(folder)


@cli.command()
@DATA
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


@bench.command("chaos")
@click.option("--jobs", type=click.IntRange(1), default=500, show_default=True)
@click.option("--seconds", type=click.FloatRange(10), default=120, show_default=True, help="while there are faults")
@click.option("--seed", type=int, default=1, show_default=True, help="decides which fault happens when")
@click.option("--json", "as_json", is_flag=True, help="end with one JSON object")
def bench_chaos(jobs: int, seconds: float, seed: int, as_json: bool) -> None:
    """Kill every process of a stack at random while jobs run, and check that nothing was lost."""
    from app.bench.chaos import command

    raise_on_signals()
    sys.exit(command.run(jobs=jobs, seconds=seconds, seed=seed, as_json=as_json))


@cli.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo"), show_default=True)
def demo(out: Path) -> None:
    """Start the stack, draw eight pictures, show them, stop the stack."""
    from app import demo as module

    raise_on_signals()
    sys.exit(0 if module.run(out) else 1)


for _command in (keys, webhook_secret, dead, drain, check, jobs):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command; an error that was foreseen is one sentence on stderr."""
    try:
        cli.main(standalone_mode=False)
    except Misconfigured as error:
        say(f"planpaint: {error}")
        sys.exit(EX_CONFIG)
    except PlanpaintError as error:
        say(f"planpaint: {error}")
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, Interrupted, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
