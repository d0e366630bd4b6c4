"""From pixels to the bytes of an image file, and of the thumbnail beside it."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.dit.metadata import Metadata

#: Longer side of a thumbnail, pixels.
THUMBNAIL_SIDE = 256


@dataclass(frozen=True, slots=True)
class _Format:
    content_type: str
    options: dict[str, Any]


#: PNG loses nothing. Full chroma in JPEG, because drawn letters have sharp coloured edges.
_FORMATS = {
    "png": _Format("image/png", {"compress_level": 6}),
    "jpeg": _Format("image/jpeg", {"quality": 92, "subsampling": "4:4:4"}),
    "webp": _Format("image/webp", {"quality": 90, "method": 4}),
}


def encode(pixels: NDArray[np.uint8], output_format: str, metadata: Metadata | None = None) -> tuple[bytes, str]:
    """The file and its content type, from [height, width, 3] RGB; `output_format` is "png", "jpeg" or "webp".

    Without `metadata` the file holds nothing but the picture.
    """
    if output_format not in _FORMATS:
        raise ValueError(f"the output format must be one of {', '.join(_FORMATS)}, got {output_format!r}")
    form = _FORMATS[output_format]
    written = metadata.options(output_format) if metadata else {}
    file = BytesIO()
    Image.fromarray(pixels).save(file, output_format, **form.options, **written)
    return file.getvalue(), form.content_type


def thumbnail(pixels: NDArray[np.uint8]) -> tuple[bytes, str]:
    """A WebP of at most 256 pixels on the longer side, never enlarged, and its content type; it holds no metadata."""
    image = Image.fromarray(pixels)
    # The picture is reduced by whole pixels first, which for a large one is most of the time.
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS, reducing_gap=3.0)
    file = BytesIO()
    image.save(file, "webp", quality=80, method=2)
    return file.getvalue(), "image/webp"
