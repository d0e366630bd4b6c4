"""Every stage trained for a moment: it learns, it can be interrupted, and the service runs what comes out."""

import json
import random
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from app.ar.condition import ImageTokenizer
from app.ar.engine import ArEngine
from app.ar.prompt import PromptEncoder, edit_positions
from app.ar.request import ArRequest
from app.ar.weights import Weights
from app.bench.demo import Result, Row
from app.bench.world import CELL, held_out
from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.sizes import Size
from demo_model import ar, card, dit, samples, vae
from demo_model import training as loop
from demo_model.codebook import CODES, encode
from demo_model.export import export
from demo_model.marks import encode_edited, encode_marked
from demo_model.stages import RECIPES, training
from demo_model.tokenizer import processor
from demo_model.training import Unfinished, weights
from tests.ar.plans import finish

CPU = torch.device("cpu")
STEPS = {"vae": 16, "decoder": 4, "ar": 8, "dit": 24}


@pytest.fixture(scope="module", autouse=True)
def small():
    """One thread, networks of one layer, and batches of a few small pictures."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_LOG", 2)
        patch.setattr(vae, "_BATCH", 2)
        patch.setattr(vae, "_CROP", 32)
        patch.setattr(vae, "_MEASURED", 4)
        patch.setattr(ar, "LAYERS", 1)
        patch.setattr(dit, "LAYERS", 1)
        patch.setattr(ar, "_BATCH", 256)
        patch.setattr(ar, "_LEAST", 1)
        patch.setattr(ar, "_BEFORE", replace(ar._BEFORE, whole=0.0))
        patch.setattr(dit, "_BATCH", 256)
        patch.setattr(dit, "_LEAST", 2)
        patch.setattr(samples, "SIDES", (4, 5))
        patch.setattr(ar, "SIDES", (4, 5))
        patch.setattr(ar, "_SMALL", (4, 5))
        patch.setattr(ar, "_SIZES", (0.3, 0.0))
        patch.setattr(ar, "_EDIT_SIZES", (0.7, 0.0))
        patch.setattr(samples, "OFTEN", {})
        patch.setattr(dit, "_SMALL", (4, 5))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with all stages trained for some steps and cooled."""
    folder = tmp_path_factory.mktemp("demo-model")
    for name, steps in STEPS.items():
        stage = training(name, folder)
        stage.run(steps)
        stage.cool(2)
    return folder


@pytest.fixture(scope="module")
def checkpoint(trained):
    export({name: weights(name, trained) for name in RECIPES}, trained / "checkpoint")
    return Checkpoint(trained / "checkpoint")


@pytest.mark.parametrize("name", ["vae", "ar", "dit"])
def test_the_loss_falls(name, trained):
    lines = [json.loads(line) for line in (trained / f"{name}.jsonl").read_text("utf-8").splitlines()]
    losses = [line["loss"] for line in lines]
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    assert lines[-1]["part"] == "cooling"


PARTS = ("state", "cooling")


def _train(name, folder, *, steps=3, cooling=2, stops=()):
    """By its recipe, interrupted in the middle of these steps, counted over both parts; each time a new process."""
    for stop in (*stops, None):
        stage = training(name, folder)
        step = stage._step
        done = stage.steps

        def interrupted(rate, over, stage=stage, step=step, stop=stop):
            if stage.steps + stage._cooled == stop:
                raise KeyboardInterrupt
            step(rate, over)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage, "_step", interrupted)
            patch.setattr(loop, "_SAVE_S", -1.0)
            with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
                stage.run(steps)
                stage.cool(cooling)
        assert stop is None or stage.steps + stage._cooled == stop >= done


@pytest.fixture
def coded(trained, tmp_path):
    """Makes folders in which there is a VAE to learn upon."""

    def folder(name):
        made = tmp_path / name
        made.mkdir()
        (made / "vae-cooling.pt").write_bytes((trained / "vae-cooling.pt").read_bytes())
        return made

    return folder


@pytest.mark.parametrize("name", ["ar", "dit"])
def test_an_interrupted_training_ends_with_the_same_weights(name, coded):
    half, whole = coded("interrupted"), coded("whole")
    _train(name, half, stops=(1, 2, 4))
    _train(name, whole)
    states = [torch.load(folder / f"{name}-{part}.pt", weights_only=True) for folder in (half, whole) for part in PARTS]
    for interrupted, straight in zip(states[:2], states[2:], strict=True):
        assert all(torch.equal(value, straight["model"][key]) for key, value in interrupted["model"].items())
        assert interrupted["steps"] == straight["steps"] == 3


def test_a_stage_that_cooled_too_early_goes_on_from_before(coded):
    early, whole = coded("early"), coded("whole")
    _train("ar", early, steps=2)
    _train("ar", early)
    _train("ar", whole)
    one, other = (weights("ar", folder) for folder in (early, whole))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_what_has_cooled_is_not_trained_on(trained):
    stage = training("decoder", trained)
    stage.cool(2)
    for call in (stage.run, stage.cool):
        with pytest.raises(RuntimeError, match="decoder has cooled"):
            call(9)


def test_a_short_try_neither_undoes_a_training_nor_is_gone_on_from_by_mistake(trained, tmp_path):
    with pytest.raises(Unfinished, match="vae has had 16 steps, more than 3"):
        training("vae", trained).run(3)
    for file in ("vae-state.pt", "vae-cooling.pt", "decoder-state.pt"):
        (tmp_path / file).write_bytes((trained / file).read_bytes())
    vae_ = training("vae", tmp_path)
    vae_.run(17)
    vae_.cool(1)
    with pytest.raises(Unfinished, match=r"holds decoder of seed 4 upon .*, not of seed 4 upon .*: remove"):
        training("decoder", tmp_path)


def test_half_cooled_weights_are_not_a_result(coded):
    folder = coded("half")
    _train("ar", folder)
    state = torch.load(folder / "ar-cooling.pt", weights_only=True)
    torch.save(state | {"cooled": 1}, folder / "ar-cooling.pt")
    with pytest.raises(Unfinished, match="ar stands at step 1 of 2 of its cooling"):
        weights("ar", folder)


def test_the_dit_needs_a_trained_vae(tmp_path):
    with pytest.raises(Unfinished, match="vae has not been trained"):
        training("dit", tmp_path)


def test_the_card_says_what_was_made_of_what(trained, checkpoint):
    row = Row(100, 0.97, 0.915, 0.99, 0.97, 1.0, 0.99, 1.0, 0.98, 1.0)
    said = card.text(checkpoint.folder, card.times(trained), Result({"256x256": row}, 2.5, 1.25, 1.5))
    assert "| 256x256 | 97% (92% to 99%) | 100% | 99% | 100% | 98% | 100% | 100 |" in said
    for name, steps in STEPS.items():
        assert f"| {name} | {steps + 2} |" in said
    assert f"{card.megabytes(checkpoint.folder):.1f} MB" in said
    assert "apache-2.0" in said


def test_the_engines_run_what_was_exported(checkpoint):
    size = Size(128, 160)
    engine = ArEngine.load(checkpoint, device=CPU, dtype=torch.float32, slots=1, max_prompt_tokens=64, max_pixels=20480)
    assert engine.admit([ArRequest("a", "a red circle on a blue background", size, 0, 0.9, 0.75)]) == []
    prior = finish(engine)["a"].prior
    assert max(prior.ids) < CODES
    painter = DitEngine.load(checkpoint, device=CPU, dtype=torch.float32)
    picture = painter.paint(PaintRequest("a red circle", size, prior, 0, 2, 1.5), lambda step: None)
    assert picture.shape == (160, 128, 3)


def test_the_checkpoint_loads_as_float32_and_is_stored_in_half(checkpoint):
    for part in checkpoint.folder.rglob("*.safetensors"):
        with safe_open(part, "pt") as tensors:
            assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.float16}  # noqa: SIM118
    for config in checkpoint.folder.glob("*/config.json"):
        assert json.loads(config.read_text("utf-8")).get("dtype", "float32") == "float32"


@pytest.mark.parametrize(("columns", "rows"), [(8, 8), (5, 16)])
def test_prompts_are_read_in_training_as_the_service_reads_them(columns, rows):
    rng, encoder = random.Random(4), PromptEncoder(processor())
    size = Size(columns * CELL, rows * CELL)
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ar, "sentence", lambda rng, drawing: told.append(drawing) or drawing.prompt)
        row = ar.prompt_row(rng, columns, rows, None)
    asked = encoder.encode(told[0].prompt, size)
    assert row.tokens[: len(asked)] == asked
    assert len(row.tokens) == len(asked) + size.preview_grid.tokens + size.large_grid.tokens == row.positions.shape[1]


@pytest.mark.parametrize(("columns", "rows"), [(8, 12), (10, 10)])
def test_where_the_last_row_of_a_preview_begins_is_always_read_after_its_neighbour_and_counts_in_full(columns, rows):
    """It is like the beginning of the large grid; a model that took it for that drew nonsense there."""
    small = Size(columns * CELL, rows * CELL).preview_grid
    whole = ar.prompt_row(random.Random(8), columns, rows, None)
    row = ar.prompt_row(random.Random(8), columns, rows, 12)
    learned, cells = len(row.weights), columns * rows
    at = max(index for index, weight in enumerate(row.weights[:-cells]) if weight == 1)
    read, last_row = len(row.tokens) - learned + at, len(whole.tokens) - cells - small.width
    assert row.weights[at - 1] < 1
    for back in (0, 1):
        assert torch.equal(row.positions[:, read - back], whole.positions[:, last_row - back])


@pytest.mark.parametrize(("columns", "rows"), [(8, 12), (10, 10)])
def test_the_ends_of_all_rows_of_a_preview_can_count_in_full(columns, rows):
    """The end of any row is like that of the last one, behind which the large grid begins."""
    small = Size(columns * CELL, rows * CELL).preview_grid
    some, all_ends = (ar.prompt_row(random.Random(8), columns, rows, None, ends=ends) for ends in (False, True))
    assert all_ends.tokens == some.tokens
    noted = some.weights.index(min(some.weights))
    for cell in range(noted, small.tokens):
        assert (all_ends.weights[cell] == 1) == (cell % small.width in (0, small.width - 1))


def test_a_stage_is_told_what_part_of_its_cooling_is_over(tmp_path):
    told = []
    model = torch.nn.Linear(1, 1)

    def loss(_, over):
        told.append(over)
        return model.weight.sum(), {}

    sgd = torch.optim.SGD(model.parameters(), 0.1)
    stage = loop.Training(loop.Stage("toy", model, (sgd,), tuple(model.parameters()), loss), tmp_path, seed=1)
    stage.run(2)
    stage.cool(4)
    assert told == [0, 0, 0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("late", [False, True])
def test_edits_are_read_in_training_as_the_service_reads_them(late):
    encoder = PromptEncoder(processor())
    mix = ar._AFTER if late else ar._BEFORE
    edit = samples.edit(random.Random(5), 7, 5, pairs=mix.pairs, alike=ar._ALIKE, shapes=mix.shapes)
    row = ar.edit_row(random.Random(5), 7, 5, mix)
    assert row.tokens[-35:] == (encode_edited(edit) if late else encode_marked(edit.result)).tolist()
    asked = encoder.encode_edit(edit.instruction, Size(7 * CELL, 5 * CELL), [edit.source.picture()])
    read = row.tokens[: len(asked.ids)]
    assert [token for token in asked.ids if token != asked.placeholder] == [t for t in read if not is_source(t)]
    assert torch.equal(row.positions, edit_positions(asked, Size(7 * CELL, 5 * CELL)))


def is_source(token):
    return token < CODES


def test_the_vision_tower_sees_the_codes_of_what_is_drawn(checkpoint):
    tower = ImageTokenizer(Weights.load(checkpoint), CPU, torch.float32)
    encoder, rng = PromptEncoder(processor()), random.Random(6)
    same = []
    for _ in range(6):
        sample = samples.sample(rng, 8, 6)
        prompt = encoder.encode_edit("copy this picture", Size(256, 192), [sample.picture()])
        found = tower.encode(prompt.pixels, prompt.grids)[0].ids
        same += (np.array(found) == encode(sample, seen=True).numpy()).tolist()
    assert np.mean(same) > 0.97


def test_what_is_held_out_is_never_drawn():
    rng = random.Random(7)
    for _ in range(400):
        edit = samples.edit(rng, 8, 8, pairs=0.7, alike=0.25, shapes=0.5)
        assert not any(map(held_out, (samples.sample(rng, 8, 8).drawing, edit.source.drawing, edit.result.drawing)))
