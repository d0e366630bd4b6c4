"""Condition images of edits, read from object storage as often as it takes while the lease holds."""

import io
from collections.abc import Callable
from functools import partial

from PIL import Image

from app.blobs import BlobStore
from workers.process import while_leased


def load(blobs: BlobStore, keys: tuple[str, ...], abandoned: Callable[[], bool]) -> tuple[Image.Image, ...]:
    """The pictures in order. Raises LostLease once `abandoned()`, or ImageFailed for one that is not there."""
    files = (while_leased(partial(blobs.get, key), abandoned, key) for key in keys)
    return tuple(Image.open(io.BytesIO(data)).convert("RGB") for data in files)
