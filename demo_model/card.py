"""The model card: what the checkpoint is, how it was made, how well it does, and what it cannot."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from app.bench.demo import STEPS, Result
from app.bench.world import COLOURS, HELD_OUT, KINDS, RELATIONS
from demo_model.codebook import CODES, MARKS, PATTERNS
from demo_model.stages import RECIPES
from demo_model.training import spent

_CLASSES = {
    "vision_language_encoder": "`GlmImageForConditionalGeneration`",
    "transformer": "`GlmImageTransformer2DModel`",
    "vae": "`AutoencoderKL`",
    "text_encoder": "`T5EncoderModel` (random, never trained)",
}


@dataclass(frozen=True, slots=True)
class Time:
    """What a stage was given: steps and CPU minutes, of all its parts."""

    name: str
    steps: int
    minutes: float


def times(folder: Path) -> list[Time]:
    """Of all stages. Raises Unfinished for one that has not cooled."""
    found = []
    for name in RECIPES:
        steps, seconds = spent(name, folder)
        found.append(Time(name, steps, round(seconds / 60, 1)))
    return found


def megabytes(checkpoint: Path) -> float:
    return sum(file.stat().st_size for file in checkpoint.rglob("*.safetensors")) / 1e6


def text(checkpoint: Path, spent: list[Time], result: Result) -> str:
    """The card as Markdown."""
    parts = {name: _parameters(checkpoint / name) for name in _CLASSES}
    rows = "\n".join(f"| `{name}` | {_CLASSES[name]} | {count / 1e6:.2f} M |" for name, count in parts.items())
    stages = "\n".join(f"| {one.name} | {one.steps} | {one.minutes} |" for one in spent)
    return _CARD.format(
        rows=rows,
        total=sum(parts.values()) / 1e6,
        megabytes=megabytes(checkpoint),
        codes=CODES,
        patterns=PATTERNS,
        marks=MARKS,
        shapes=", ".join(KINDS),
        colours=", ".join(COLOURS),
        relations=", ".join(RELATIONS.values()),
        held=f"{HELD_OUT / 256:.0%}",
        steps=STEPS,
        figures="\n".join(_figure(name, result) for name in result.rows),
        latency=result.latency_s,
        ar_load=result.ar_load_s,
        dit_load=result.dit_load_s,
        stages=stages,
    )


def _figure(name: str, result: Result) -> str:
    row = result.rows[name]
    parts = " | ".join(f"{getattr(row, part):.0%}" for part in ("background", "count", "colour", "shape", "relation"))
    return f"| {name} | {row.full:.0%} ({row.low:.0%} to {row.high:.0%}) | {parts} | {row.n} |"


def _parameters(part: Path) -> int:
    total = 0
    for file in part.glob("*.safetensors"):
        with safe_open(file, "numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                size = 1
                for side in tensors.get_slice(name).get_shape():
                    size *= side
                total += size
    return total


_CARD = """\
---
license: apache-2.0
pipeline_tag: text-to-image
library_name: diffusers
tags: [demo, tiny, synthetic]
---

# The demo checkpoint

A very small checkpoint of the real GLM-Image classes that draws coloured shapes. It is here so that the demo and the
tests run the real model code, end to end, without a download and without an accelerator.

*"a green square to the left of a yellow star on a white background"* is what it understands.

**It is for demonstration and tests, and for nothing else.** It knows no object, letter or style but those below.
Pictures of anything else need the published weights.

![Some of its pictures](sheet.png)

| part | class | parameters |
|---|---|---|
{rows}
| together | laid out as `GlmImagePipeline.from_pretrained` expects | **{total:.2f} M** |

The weights are stored as fp16 safetensors ({megabytes:.1f} MB) and are loaded as float32.

## What it can draw

One shape, or two and how they stand, on a plain background, at every size whose sides are multiples of 32 from 128 to
512:

| | |
|---|---|
| shapes | {shapes} |
| colours | {colours} |
| backgrounds | the same; not the colour of a shape |
| relations | {relations} |
| edits of such a picture | "make the circle green", "change the background to red" |

It was trained on the sentences without articles, too, with "on blue", ", blue background" or no background (then
white, or black behind a white shape), after "a picture of", "draw" and the like, and with tails such as ", high
quality". Case does not matter. It was taught no other words: whatever else is asked for gives some picture of this
kind.

Shapes stand on the cells of 32 pixels, in one of a few sizes. The prompt leaves one thing open: where there is room,
one shape, or one above the other, stands in the middle or a cell aside.

## How well

Prompts in the standard form, all different, about half of them with two shapes, all of them held out: {held} of the
combinations of shapes, colours, background and relation, chosen by a hash, never occurred in training, neither as
pictures nor as edits, however they were said. Through the service with its default sampling, {steps} steps. A picture
is right when background, number, colours, shapes and relation all are, judged from its pixels; an edit when the change
is made and nothing else is. Part right, 95 % interval (Wilson); printed by `planpaint bench demo`:

| size (WIDTHxHEIGHT) | all right | background | count | colour | shape | relation | n |
|---|---|---|---|---|---|---|---|
{figures}

`any`: a size drawn at random for each prompt, multiples of 32 from 128 to 512. `edits`: of pictures of 256x256 that
were drawn in code. 256x256 from call to stored picture {latency} s; with files in memory the AR part loads in {ar_load}
s, the DiT part in {dit_load} s.

## Limits

- The AR model samples; now and then a token slips, and a shape gets a dent or its neighbour's form. A test that asserts
  on pictures should use temperature 0, or prompts, sizes and seeds that it has seen to come out right.
- The preview grid is no small picture. The pipeline throws it away, so that it was taught to be notes: its first eleven
  cells name the shapes and say how and where they stand, and the rest is blank.
- Of prior tokens, cells of the background are of many kinds that look the same: each says how far it is to what comes
  next, a shape or the end of its row; the first two of an edit, which shapes are there and which of them changes.
- The text encoder is random: no text is rendered.

## How it was made

By `make demo-model`, from random weights, on pictures that were drawn in code while training: flat shapes by their
formulas, anti-aliased, with their sentences. **No downloaded data, no downloaded weights, no pictures of people or
places.** The codebook has {codes} codes: the plain colours, each with {marks} marks or none, and {patterns} edge
patterns (k-means over the same drawings) in every ordered pair of colours. The tokenizer is a byte-level BPE trained on
the sentences.

| stage | steps | CPU minutes |
|---|---|---|
{stages}

Licence: Apache-2.0, as the rest of the project.
"""
