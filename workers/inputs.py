"""Condition images of edits, read from object storage as often as it takes while the lease holds."""

import io
import time
from collections.abc import Callable

import structlog
from PIL import Image

from app.blobs import BlobStore
from app.errors import LostLease, Unavailable

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def load(blobs: BlobStore, keys: tuple[str, ...], abandoned: Callable[[], bool]) -> tuple[Image.Image, ...]:
    """The pictures in order. Raises LostLease once `abandoned()`, or ImageFailed for one that is not there."""
    return tuple(Image.open(io.BytesIO(_patiently(blobs, key, abandoned))).convert("RGB") for key in keys)


def _patiently(blobs: BlobStore, key: str, abandoned: Callable[[], bool]) -> bytes:
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return blobs.get(key)
        except Unavailable as error:
            if abandoned():
                raise LostLease(key) from error
            log.warning("waiting", error=str(error), pause_s=pause)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
