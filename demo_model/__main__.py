"""`python -m demo_model`: train the stages, all in turn or one alone, and make the checkpoint of what they learned."""

import subprocess
import sys
from pathlib import Path

import click
import torch

from app.bench import demo as bench
from demo_model import card
from demo_model.export import export
from demo_model.stages import RECIPES, training
from demo_model.training import weights

_FOLDER = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo-model"), show_default=True
)


@click.group()
def cli() -> None:
    """Train the demo checkpoint from nothing. Every command goes on where it was interrupted."""


@cli.command("train")
@click.argument("name", type=click.Choice(list(RECIPES)))
@_FOLDER
@click.option("--steps", type=click.IntRange(1), help="steps in all at the constant rate, instead of the recipe's")
@click.option("--cooling", type=click.IntRange(0), help="steps to cool in, instead of the recipe's; 0: do not cool")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
def train(name: str, folder: Path, steps: int | None, cooling: int | None, threads: int) -> None:
    """Train one stage: on from where it stands at the constant rate, then cool and keep the cooled weights."""
    torch.set_num_threads(threads)
    stage, recipe = training(name, folder), RECIPES[name]
    stage.run(recipe.steps if steps is None else steps)
    if cooling := recipe.cooling if cooling is None else cooling:
        stage.cool(cooling)
    click.echo(f"{name}: {stage.steps} + {cooling} steps, {stage.cpu_s / 60:.1f} CPU minutes")


@cli.command("make")
@_FOLDER
@click.option("--most", type=click.IntRange(1), default=10**9, help="most steps of any stage, to try the recipe out")
@click.option("--prompts", type=int, default=bench.PROMPTS, show_default=True, help="prompts a row of the figures")
@click.pass_context
def make(context: click.Context, folder: Path, most: int, prompts: int) -> None:
    """Train all stages side by side on two cores, then write FOLDER/checkpoint with its card, figures and sheet."""
    folder.mkdir(parents=True, exist_ok=True)
    ar = _child(folder, "ar", most)
    try:
        for name in ("vae", "dit", "decoder"):
            _wait(name, _child(folder, name, most))
        _wait("ar", ar)
    finally:
        ar.kill()
    context.invoke(export_command, folder=folder)
    context.invoke(measure, folder=folder, prompts=prompts, row=())


def _child(folder: Path, name: str, most: int) -> subprocess.Popen[bytes]:
    recipe = RECIPES[name].part(most)
    command = [sys.executable, "-m", "demo_model", "train", name, "--folder", str(folder)]
    return subprocess.Popen([*command, "--steps", str(recipe.steps), "--cooling", str(recipe.cooling)])


def _wait(name: str, child: subprocess.Popen[bytes]) -> None:
    if child.wait():
        raise click.ClickException(f"the stage {name} failed")


@cli.command("export")
@_FOLDER
def export_command(folder: Path) -> None:
    """Write FOLDER/checkpoint from the cooled weights of all stages."""
    export({name: weights(name, folder) for name in RECIPES}, folder / "checkpoint")
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
