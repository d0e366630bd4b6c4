import io

import numpy as np
import pytest
from PIL import Image

from app.checkpoint import DEMO
from app.decode import decode
from app.errors import RefusedInput

PROCESSOR = DEMO / "processor"


def _file(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def _decode(data, max_pixels=1_000_000):
    return Image.open(io.BytesIO(decode(data, PROCESSOR, max_pixels=max_pixels, field="images/0")))


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGB"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("JPEG", "CMYK"), ("PNG", "L")]
)
def test_every_good_kind_becomes_an_rgb_png_of_whole_cells(kind, mode):
    image = _decode(_file(Image.new(mode, (256, 192)), kind))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (256, 192))


def test_sides_are_rounded_to_whole_cells():
    assert _decode(_file(Image.new("RGB", (250, 200)))).size == (256, 192)


def test_transparency_becomes_white():
    image = _decode(_file(Image.new("RGBA", (128, 128), (255, 0, 0, 0))))
    assert image.getpixel((5, 5)) == (255, 255, 255)


def test_the_orientation_is_applied():
    image = Image.new("RGB", (256, 128), "blue")
    image.paste("red", (0, 0, 128, 128))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    turned = _decode(_file(image, "JPEG", exif=exif, quality=95))
    assert turned.size == (128, 256)
    top, bottom = np.asarray(turned)[10, 64], np.asarray(turned)[-10, 64]
    assert top[0] > 200 > bottom[0]


def test_the_first_frame_of_an_animation_is_taken():
    frames = [Image.new("RGB", (128, 128), colour) for colour in ("red", "blue")]
    image = _decode(_file(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    assert image.getpixel((5, 5)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a"),
        (b"GIF89a", "not a"),
        (b"<svg/>", "not a"),
        (_file(Image.new("RGB", (64, 64)), "GIF"), "not a"),
        (_file(Image.new("RGB", (64, 64)), "TIFF"), "not a"),
        (_file(Image.effect_noise((200, 200), 50), "PNG")[:-2000], "cannot be decoded"),
        (_file(Image.effect_noise((200, 200), 50), "JPEG")[:2000], "cannot be decoded"),
        (_file(Image.new("RGB", (2000, 2000))), "has more than 1000000 pixels"),
        (_file(Image.new("1", (20_000, 20_000))), "has more than 1000000 pixels"),
    ],
)
def test_bad_files_get_one_sentence(data, words):
    with pytest.raises(RefusedInput) as refused:
        _decode(data)
    assert refused.value.field == "images/0"
    assert words in refused.value.detail
    assert "\n" not in refused.value.detail


def test_what_is_decoded_twice_stays_the_same():
    once = _file(_decode(_file(Image.effect_noise((300, 200), 80).convert("RGB"))))
    assert np.array_equal(np.asarray(_decode(once)), np.asarray(Image.open(io.BytesIO(once))))
