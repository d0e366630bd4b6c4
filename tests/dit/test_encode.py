import json
from dataclasses import asdict
from io import BytesIO

import numpy as np
import pytest
from PIL import ExifTags, Image

from app import __version__
from app.dit.encode import encode, thumbnail
from app.dit.metadata import Metadata


def picture():
    rows, columns = np.mgrid[0:48, 0:80]
    return np.stack((rows * 5, columns * 3, (rows + columns) * 2), axis=-1).astype(np.uint8)


@pytest.mark.parametrize(("output_format", "loss"), [("png", 0), ("jpeg", 6), ("webp", 8)])
def test_files_hold_the_picture(output_format, loss):
    data, content_type = encode(picture(), output_format)
    assert content_type == f"image/{output_format}"
    with Image.open(BytesIO(data)) as image:
        assert image.format == output_format.upper()
        assert image.size == (80, 48)
        back = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(back - picture()).max() <= loss


def test_unknown_formats_are_named():
    with pytest.raises(ValueError, match="png, jpeg, webp, got 'gif'"):
        encode(picture(), "gif")


def _said(prompt):
    return Metadata(prompt, "80x48", 7, 12, 1.5, 0.9, 0.75, 0, 0, "demo", "job_1", 2)


def _read(output_format, metadata):
    with Image.open(BytesIO(encode(picture(), output_format, metadata)[0])) as image:
        image.load()
        if output_format == "png":
            return image.text["parameters"], image.text["planpaint"]
        exif = image.getexif()
        comment = exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment]
        return comment.removeprefix(b"UNICODE\0").decode("utf-16-be"), exif[ExifTags.Base.ImageDescription]


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("prompt", ["", "a cat", "猫と犬 🐈", "a\nb, Steps: 9", "Ω\x01é"])
def test_files_tell_how_they_were_made(output_format, prompt):
    infotext, exact = _read(output_format, _said(prompt))
    assert infotext.startswith(f"{prompt}\nSteps: 12, CFG scale: 1.5, Seed: 7, Size: 80x48, Model: demo, Job: job_1")
    assert json.loads(exact) == asdict(_said(prompt)) | {"software": f"planpaint {__version__}"}


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("character", ["x", "猫", "🐈", "\x01"])
def test_a_prompt_of_any_length_is_cut_to_what_a_file_holds(output_format, character):
    infotext, exact = _read(output_format, _said(character * 100_000))
    kept = json.loads(exact)["prompt"]
    assert infotext.startswith(f"{kept}\nSteps")
    assert set(kept.removesuffix("…")) == {character}
    assert 2000 < len(kept) < 100_000


@pytest.mark.parametrize(
    ("size", "small"), [((2048, 512), (256, 64)), ((300, 2000), (38, 256)), ((80, 48), (80, 48)), ((1, 2048), (1, 256))]
)
def test_thumbnails_fit_and_are_never_enlarged(size, small):
    pixels = np.full((size[1], size[0], 3), (200, 30, 90), np.uint8)
    data, content_type = thumbnail(pixels)
    with Image.open(BytesIO(data)) as image:
        assert (image.format, image.size, content_type) == ("WEBP", small, "image/webp")
        assert np.abs(np.asarray(image.convert("RGB")).astype(int) - (200, 30, 90)).max() <= 8
