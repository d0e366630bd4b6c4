"""What must be true of a picture's file."""

import hashlib
import json
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from loadtest.checks import CheckFailed, expect, same
from loadtest.orders import Order

if TYPE_CHECKING:
    from app.bench.judge import Verdict

#: EXIF tag ImageDescription, where JPEG and WebP hold what a picture was made from.
_DESCRIPTION = 0x010E
#: Longer side of a thumbnail, pixels.
_THUMBNAIL_SIDE = 256


def check_file(order: Order, job_id: str, image: dict[str, Any], content_type: str, data: bytes) -> Image.Image:
    """The bytes are those of the record, and a whole picture of the right format, size, seed and job."""
    index = image["index"]
    same("the content type of the picture", content_type, f"image/{order.output_format}")
    same("the bytes of the picture", len(data), image["bytes"])
    same("the sha256 of the picture", hashlib.sha256(data).hexdigest(), image["sha256"])
    picture = _opened(data)
    same("the format of the picture", picture.format, order.output_format.upper())
    same("the size of the picture", f"{picture.width}x{picture.height}", order.size)
    written = _written(picture)
    if not order.embed_metadata:
        same("what is written in a file that is to say nothing", written, None)
        return picture
    expect(written is not None, "nothing is written in the picture's file")
    made_from = {"prompt": order.prompt, "size": order.size, "steps": order.steps, "job": job_id, "index": index}
    for name, wanted in (made_from | {"seed": order.image_seed(index)}).items():
        same(f"the {name} in the picture's file", json.loads(written or "")[name], wanted)
    return picture


def load_judge() -> Callable[[str, Image.Image], "Verdict"]:
    """The judge of a picture by its prompt. It knows what the demo checkpoint draws, and needs NumPy."""
    from app.bench.judge import judge

    return judge


def check_drawing(order: Order, picture: Image.Image) -> None:
    """The picture shows what its prompt says."""
    verdict = load_judge()(order.prompt, picture)
    expect(verdict.full, verdict.explain())


def check_thumbnail(order: Order, content_type: str, data: bytes) -> None:
    """A WebP of the picture's shape, at most 256 pixels a side."""
    same("the content type of the thumbnail", content_type, "image/webp")
    thumbnail = _opened(data)
    same("the format of the thumbnail", thumbnail.format, "WEBP")
    scale = min(1.0, _THUMBNAIL_SIDE / max(order.width, order.height))
    for found, side in ((thumbnail.width, order.width), (thumbnail.height, order.height)):
        expect(abs(found - side * scale) <= 1, f"the thumbnail of {order.size} is {thumbnail.width}x{thumbnail.height}")


class Gallery:
    """Whose picture is whose: the same order has the same bytes each time, and nobody else has them."""

    def __init__(self) -> None:
        self._sha256: dict[tuple[object, ...], str] = {}
        self._owner: dict[str, tuple[object, ...]] = {}

    def add(self, order: Order, job_id: str, image: dict[str, Any]) -> None:
        index, sha256 = image["index"], image["sha256"]
        made_from: tuple[object, ...] = (job_id, index)
        if not order.embed_metadata:
            # Then nothing of the job is in the file.
            made_from = (order.prompt, order.size, order.image_seed(index), order.steps, order.output_format)
            made_from += (order.temperature,)
        same(f"the sha256 of a picture of {made_from}", sha256, self._sha256.setdefault(made_from, sha256))
        same("what a picture was made from", made_from, self._owner.setdefault(sha256, made_from))


def _opened(data: bytes) -> Image.Image:
    try:
        picture = Image.open(BytesIO(data))
        picture.load()
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise CheckFailed(f"what came is no whole picture: {error}") from error
    return picture


def _written(picture: Image.Image) -> str | None:
    """What the file says of how its picture was made."""
    if picture.format == "PNG":
        return picture.info.get("planpaint")
    found = picture.getexif().get(_DESCRIPTION)
    return None if found is None else str(found)
