import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from app.checkpoint import DEMO
from app.domain.sizes import Grid
from app.errors import BrokenCheckpoint
from app.pictures import Bounds, _cut, _size, fits, prepare
from tests.edits import noise

SIDES = st.integers(1, 8000)
BOUNDS = [Bounds(128, 2048), Bounds(512, 2048), Bounds(32, 1024)]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@given(SIDES, SIDES, st.sampled_from([64 * 64, 500 * 500, 1024 * 1024]))
@example(144, 576, 1024 * 1024)
@example(244, 976, 500 * 500)
def test_a_prepared_size_is_one_that_both_stages_of_the_reference_keep(bounds, width, height, most_pixels):
    from transformers.models.glm_image.image_processing_pil_glm_image import smart_resize

    shorter = min(width, height)
    width, height = min(width, 4 * shorter), min(height, 4 * shorter)  # as prepare() cuts first
    size = _size(width, height, bounds, most_pixels)
    assert all(side % 32 == 0 and bounds.least_side <= side <= bounds.most_side for side in size)
    assert size[0] * size[1] <= most_pixels or min(size) == bounds.least_side
    least, most = bounds.least_side**2, bounds.most_side**2
    assert smart_resize(size[1], size[0], 16, least, most) == (size[1] // 2, size[0] // 2)
    assert _size(*size, bounds, most_pixels) == size


@pytest.mark.parametrize(
    ("given", "prepared"),
    [
        ((256, 256), (256, 256)),
        ((500, 300), (512, 288)),
        ((100, 60), (224, 128)),
        ((3000, 2000), (1248, 832)),
        ((2000, 20), (512, 128)),
        ((4096, 4096), (1024, 1024)),
    ],
)
def test_pictures_are_scaled_no_more_than_needed(given, prepared):
    image = prepare(noise(*given), Bounds(128, 2048))
    assert image.size == prepared
    assert image.mode == "RGB"
    assert fits(image, Grid(prepared[1] // 32, prepared[0] // 32))
    assert prepare(image, Bounds(128, 2048)).tobytes() == image.tobytes()


def test_what_is_whole_keeps_its_pixels():
    image = noise(160, 128)
    assert prepare(image, Bounds(128, 2048)).tobytes() == image.tobytes()


def test_a_long_picture_is_cut_around_its_centre():
    image = Image.new("RGB", (1000, 100), "red")
    image.paste("blue", (300, 0, 700, 100))
    assert _cut(image).getcolors() == [(400 * 100, (0, 0, 255))]
    assert _cut(image.rotate(90, expand=True)).size == (100, 400)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "I;16", "LA", "RGBA"])
def test_any_mode_becomes_rgb(mode):
    image = prepare(Image.new(mode, (128, 128)), Bounds(128, 2048))
    assert image.mode == "RGB"
    nothing = mode in ("LA", "RGBA", "CMYK")  # transparent, or no ink
    assert image.getpixel((0, 0)) == ((255, 255, 255) if nothing else (0, 0, 0))


def test_16_bit_greys_keep_their_brightness():
    image = prepare(Image.fromarray(np.full((128, 128), 40000, np.uint16)), Bounds(128, 2048))
    assert image.getpixel((0, 0)) == (156, 156, 156)


def test_pictures_are_turned_upright():
    image = Image.new("RGB", (256, 128))
    image.getexif()[0x0112] = 6
    assert prepare(image, Bounds(128, 2048)).size == (128, 256)


def test_the_bounds_are_the_checkpoints(tmp_path):
    assert Bounds.of(DEMO / "processor") == Bounds(128, 2048)
    path = tmp_path / "processor_config.json"
    path.write_text(json.dumps({"image_processor": {"size": {"shortest_edge": 500 * 500, "longest_edge": 9000**2}}}))
    assert Bounds.of(tmp_path) == Bounds(512, 2048)
    path.write_text("{}")
    with pytest.raises(BrokenCheckpoint, match="processor_config"):
        Bounds.of(tmp_path)
    with pytest.raises(ValueError, match="whole cells"):
        Bounds(100, 2048)
