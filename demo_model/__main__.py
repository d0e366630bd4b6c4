"""`python -m demo_model`: train the stages, all in turn or one alone, and make the checkpoint of what they learned."""

import math
import subprocess
import sys
from pathlib import Path

import click
import torch

from app.bench import demo as bench
from demo_model import card
from demo_model.export import export
from demo_model.stages import SEEDS, training
from demo_model.training import weights

#: CPU minutes at the constant rate that each stage is given; a quarter of its steps to cool comes on top.
_MINUTES = {"vae": 6.5, "ar": 160.0, "dit": 76.0, "decoder": 12.0}

_FOLDER = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo-model"), show_default=True
)


@click.group()
def cli() -> None:
    """Train the demo checkpoint from nothing. Every command goes on where it was interrupted."""


@cli.command("train")
@click.argument("name", type=click.Choice(list(SEEDS)))
@_FOLDER
@click.option("--minutes", type=float, help="CPU minutes at the constant rate, instead of the recipe's")
@click.option("--steps", type=int, help="steps at the constant rate, instead of minutes")
@click.option("--threads", type=int, default=1, show_default=True)
@click.option("--cool", is_flag=True, help="then take the rate down and keep the cooled weights")
def train(name: str, folder: Path, minutes: float | None, steps: int | None, threads: int, cool: bool) -> None:
    """Train one stage; minutes and steps are those in all, earlier runs included."""
    torch.set_num_threads(threads)
    stage = training(name, folder)
    stage.run(_MINUTES[name] if minutes is None else minutes, steps)
    if cool:
        stage.cool()
    click.echo(f"{name}: {stage.steps} steps, {stage.cpu_s / 60:.1f} CPU minutes")


@cli.command("make")
@_FOLDER
@click.option("--minutes", type=float, default=math.inf, help="most CPU minutes of any stage, to try the recipe out")
@click.option("--prompts", type=int, default=bench.PROMPTS, show_default=True, help="prompts a row of the figures")
@click.pass_context
def make(context: click.Context, folder: Path, minutes: float, prompts: int) -> None:
    """Train all stages side by side on two cores, then write FOLDER/checkpoint with its card, figures and sheet."""
    folder.mkdir(parents=True, exist_ok=True)
    ar = _child(folder, "ar", minutes)
    try:
        for name in ("vae", "dit"):
            _wait(name, _child(folder, name, minutes))
        _wait("ar", ar)
    finally:
        ar.kill()
    _wait("decoder", _child(folder, "decoder", minutes))
    context.invoke(export_command, folder=folder)
    context.invoke(measure, folder=folder, prompts=prompts, row=())


def _child(folder: Path, name: str, most: float) -> subprocess.Popen[bytes]:
    minutes = str(min(most, _MINUTES[name]))
    command = [sys.executable, "-m", "demo_model", "train", name, "--folder", str(folder), "--minutes", minutes]
    return subprocess.Popen([*command, "--cool"])


def _wait(name: str, child: subprocess.Popen[bytes]) -> None:
    if child.wait():
        raise click.ClickException(f"the stage {name} failed")


@cli.command("export")
@_FOLDER
def export_command(folder: Path) -> None:
    """Write FOLDER/checkpoint from the cooled weights of all stages."""
    export({name: weights(name, folder) for name in SEEDS}, folder / "checkpoint")
    click.echo(f"{folder / 'checkpoint'}: {card.megabytes(folder / 'checkpoint'):.1f} MB")


@cli.command("measure")
@_FOLDER
@click.option("--prompts", type=int, default=bench.PROMPTS, show_default=True, help="prompts a row")
@click.option("--row", multiple=True, type=click.Choice(list(bench.ROWS)), help="only these rows")
def measure(folder: Path, prompts: int, row: tuple[str, ...]) -> None:
    """Measure FOLDER/checkpoint through the service; write its figures, contact sheet and model card."""
    checkpoint = folder / "checkpoint"
    result = bench.run(checkpoint, prompts, row or tuple(bench.ROWS), checkpoint / "sheet.png", click.echo)
    (folder / "figures.json").write_text(bench.as_json(result) + "\n", "utf-8")
    (checkpoint / "README.md").write_text(card.text(checkpoint, card.times(folder), result), "utf-8")


if __name__ == "__main__":
    cli()
