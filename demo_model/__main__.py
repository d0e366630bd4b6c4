"""`python -m demo_model`: train the stages, all in turn or one alone, and make the checkpoint of what they learned."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch

from app.bench import demo as bench
from demo_model import card
from demo_model.export import export
from demo_model.stages import RECIPES, training
from demo_model.training import Unfinished, weights

_FOLDER = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo-model"), show_default=True
)
_MOST = click.option(
    "--most", type=click.IntRange(1), default=10**9, help="most steps of a stage at the constant rate, to try it out"
)
_PROMPTS = click.option(
    "--prompts", type=click.IntRange(1), default=bench.PROMPTS, show_default=True, help="prompts a row of the figures"
)


@click.group()
def cli() -> None:
    """Train the demo checkpoint from nothing. Every command goes on where it was interrupted."""


@cli.command("train")
@click.argument("name", type=click.Choice(list(RECIPES)))
@_FOLDER
@_MOST
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def train(name: str, folder: Path, most: int, threads: int) -> None:
    """Train one stage by its recipe."""
    torch.set_num_threads(threads)
    recipe = RECIPES[name].shortened(most)
    with _alone(folder, name), _said():
        stage = training(name, folder)
        stage.run(recipe.steps)
        stage.cool(recipe.cooling)
    click.echo(f"{name}: {stage.steps + recipe.cooling} steps, {stage.cpu_s / 60:.1f} CPU minutes")


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Two that train one stage in one folder would write over each other's states. The kernel frees the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise click.ClickException(f"{name} is being trained in {folder} by another process") from None
        yield


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except Unfinished as error:
        raise click.ClickException(str(error)) from error


@cli.command("make")
@_FOLDER
@_MOST
@_PROMPTS
@click.pass_context
def make(context: click.Context, folder: Path, most: int, prompts: int) -> None:
    """Train all stages side by side on two cores, then write FOLDER/checkpoint with its card, figures and sheet.

    Trained stages are not trained again; the measuring at the end begins anew.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    # The AR model takes longer than all others together.
    chains = [["ar"], ["vae", "dit", "decoder"]]
    try:
        while chains:
            for chain in chains:
                if chain[0] not in running:
                    running[chain[0]] = _child(folder, chain[0], most)
                elif (status := running[chain[0]].poll()) is not None:
                    if status:
                        raise click.ClickException(f"the stage {chain[0]} failed")
                    chain.pop(0)
            chains = [chain for chain in chains if chain]
            time.sleep(0.2)
    finally:
        for child in running.values():
            child.kill()
            child.wait()
    context.invoke(export_command, folder=folder)
    context.invoke(measure, folder=folder, prompts=prompts, row=())


def _child(folder: Path, name: str, most: int) -> subprocess.Popen[bytes]:
    """A stage in a process of its own, which ends with this one."""
    tether = [sys.executable, "-m", "app.launcher.tether", str(os.getpid()), "KILL"]
    command = [sys.executable, "-m", "demo_model", "train", name, "--folder", str(folder), "--most", str(most)]
    return subprocess.Popen([*tether, *command])


@cli.command("export")
@_FOLDER
def export_command(folder: Path) -> None:
    """Write FOLDER/checkpoint from the cooled weights of all stages."""
    with _said():
        export({name: weights(name, folder) for name in RECIPES}, folder / "checkpoint")
    click.echo(f"{folder / 'checkpoint'}: {card.megabytes(folder / 'checkpoint'):.1f} MB")


@cli.command("measure")
@_FOLDER
@_PROMPTS
@click.option("--row", multiple=True, type=click.Choice(list(bench.ROWS)), help="only these rows")
def measure(folder: Path, prompts: int, row: tuple[str, ...]) -> None:
    """Measure FOLDER/checkpoint through the service; write its figures, contact sheet and model card."""
    checkpoint = folder / "checkpoint"
    result = bench.run(checkpoint, prompts, row or tuple(bench.ROWS), checkpoint / "sheet.png", click.echo)
    (folder / "figures.json").write_text(bench.as_json(result) + "\n", "utf-8")
    (checkpoint / "README.md").write_text(card.text(checkpoint, card.times(folder), result), "utf-8")


if __name__ == "__main__":
    cli()
