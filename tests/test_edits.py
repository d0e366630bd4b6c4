"""Edits through both engines, against the whole reference pipeline and against what their prompts ask for."""

import numpy as np
import pytest
import torch
from PIL import Image

from app.ar.engine import ArEngine
from app.ar.request import ArRequest
from app.bench.judge import Drawing, Shape, draw, judge
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.sizes import Size
from app.pictures import Bounds, prepare
from tests.ar.plans import finish
from tests.edits import drawn, noise, smallest_shim

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


@pytest.fixture(scope="module")
def paint(demo_checkpoint):
    cpu = torch.device("cpu")
    ar = ArEngine.load(
        demo_checkpoint, device=cpu, dtype=torch.float32, slots=4, max_prompt_tokens=256, max_pixels=384 * 384
    )
    dit = DitEngine.load(demo_checkpoint, device=cpu, dtype=torch.float32)
    bounds = Bounds.of(demo_checkpoint.part("processor"))

    def run(prompt, size, *images, steps, guidance_scale):
        """Greedily, as a caller does it: prepared once, planned, painted."""
        images, size = tuple(prepare(image, bounds) for image in images), Size.parse(size)
        assert ar.admit([ArRequest("a", prompt, size, 0, 0, 1, images)]) == []
        planned = finish(ar)["a"]
        request = PaintRequest(prompt, size, planned.prior, 3, steps, guidance_scale, images, planned.condition)
        return dit.paint(request, lambda step: None)

    return run


@pytest.mark.parametrize(
    ("size", "images", "guidance_scale"),
    [("256x256", [(256, 256)], 1.0), ("256x128", [(192, 256), (160, 128)], 1.5)],
)
def test_edits_are_those_of_the_whole_pipeline(size, images, guidance_scale, paint, demo_checkpoint):
    from diffusers import GlmImagePipeline
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.disable_progress_bar()
    pipeline = GlmImagePipeline.from_pretrained(demo_checkpoint.folder, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    prompt, pictures = "make the circle green", [drawn(*images[0]), *(noise(*sides) for sides in images[1:])]
    width, height = map(int, size.split("x"))
    with smallest_shim(pipeline), torch.random.fork_rng():  # the pipeline seeds the global generator
        expected = pipeline(
            prompt=prompt,
            image=pictures,
            height=height,
            width=width,
            num_inference_steps=2,
            guidance_scale=guidance_scale,
            generator=torch.Generator("cpu").manual_seed(3),
        ).images[0]
    pixels = paint(prompt, size, *pictures, steps=2, guidance_scale=guidance_scale)
    assert np.abs(pixels.astype(int) - np.asarray(expected)).max() <= 1


@pytest.mark.parametrize(
    ("prompt", "before", "after"),
    [
        ("make the circle green", ("white", "red circle"), ("white", "green circle")),
        ("change the background to red", ("blue", "purple square"), ("red", "purple square")),
        ("make the ring black", ("red", "green ring"), ("red", "black ring")),
    ],
)
def test_an_edit_does_what_its_prompt_says(prompt, before, after, paint):
    def drawing(background, shape):
        return Drawing(background, (Shape(*shape.split()),))

    source = draw(drawing(*before), (256, 256))
    image = Image.fromarray(paint(prompt, "256x256", source, steps=10, guidance_scale=1.0))
    verdict = judge(drawing(*after).prompt, image)
    assert verdict.full, verdict.explain()
    assert not judge(drawing(*before).prompt, image).full
