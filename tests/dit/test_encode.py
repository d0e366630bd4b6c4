from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from app.dit.encode import encode


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
