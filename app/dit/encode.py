"""From pixels to the bytes of an image file."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


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


def encode(pixels: NDArray[np.uint8], output_format: str) -> tuple[bytes, str]:
    """The file and its content type, from [height, width, 3] RGB; `output_format` is "png", "jpeg" or "webp"."""
    if output_format not in _FORMATS:
        raise ValueError(f"the output format must be one of {', '.join(_FORMATS)}, got {output_format!r}")
    form = _FORMATS[output_format]
    file = BytesIO()
    Image.fromarray(pixels).save(file, output_format, **form.options)
    return file.getvalue(), form.content_type
