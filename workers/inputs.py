"""Condition images of edits, read from object storage as often as it takes while the lease holds."""

import io
from collections.abc import Callable
from functools import partial

from PIL import Image

from app.blobs import BlobStore
from app.errors import ImageFailed
from workers.process import while_leased


def load(blobs: BlobStore, keys: tuple[str, ...], abandoned: Callable[[], bool]) -> tuple[Image.Image, ...]:
    """The pictures in order. Raises LostLease once `abandoned()`, ImageFailed for one that is gone or damaged."""
    files = (while_leased(partial(blobs.get, key), abandoned, key) for key in keys)
    return tuple(_picture(data) for data in files)


def _picture(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except Exception as error:  # Pillow's many kinds; the API has stored a good one, so the object was damaged since
        reason = f"a stored condition image cannot be read: {type(error).__name__}"
        raise ImageFailed("input_missing", reason) from error
