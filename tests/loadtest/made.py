"""An order, and what a service that is right would tell of it; tests then spoil it."""

import hashlib
import json
from dataclasses import replace
from io import BytesIO
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from app.bench.judge import draw, parse
from loadtest.orders import SEED_LIMIT, Order

JOB_ID = "job_" + "5" * 32
#: Two pictures of 256x256; the second one's seed begins again at 0.
ORDER = Order(
    run="r",
    number="1",
    prompt="a red circle on a blue background",
    width=256,
    height=256,
    n=2,
    seed=SEED_LIMIT - 1,
    steps=12,
    output_format="png",
    temperature=0.0,
    embed_metadata=True,
)


def file_of(order: Order = ORDER, index: int = 0, shown: str | None = None, job_id: str = JOB_ID) -> bytes:
    """The picture's file. `shown`: draw this prompt in place of the order's."""
    picture = draw(parse(shown or order.prompt), (order.width, order.height))
    told = {"prompt": order.prompt, "size": order.size, "steps": order.steps, "job": job_id, "index": index}
    text, file = json.dumps(told | {"seed": order.image_seed(index)}), BytesIO()
    if order.output_format == "png":
        chunks = PngInfo()
        chunks.add_itxt("planpaint", text)
        picture.save(file, "png", pnginfo=chunks if order.embed_metadata else None)
    else:
        exif = Image.Exif()
        exif[0x010E] = text
        picture.save(file, order.output_format, **({"exif": exif} if order.embed_metadata else {}))
    return file.getvalue()


def image_of(order: Order = ORDER, index: int = 0, data: bytes = b"x", **other: Any) -> dict[str, Any]:
    return {
        "index": index,
        "status": "succeeded",
        "step": order.steps,
        "steps": order.steps,
        "seed": order.image_seed(index),
        "width": order.width,
        "height": order.height,
        "error": None,
        "content_type": f"image/{order.output_format}",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "content_url": "http://127.0.0.1/content",
    } | other


def job_of(order: Order = ORDER, **other: Any) -> dict[str, Any]:
    parameters = order.body()
    del parameters["metadata"]
    return {
        "id": JOB_ID,
        "status": "succeeded",
        "completed_at": "2026-01-01T00:00:09.000Z",
        "parameters": parameters,
        "metadata": order.metadata,
        "images": [image_of(order, index) for index in range(order.n)],
    } | other


def log_of(order: Order = ORDER) -> list[dict[str, Any]]:
    """Every event of the job, as its log tells them."""
    told = job_of(order)
    del told["metadata"], told["parameters"]["prompt"]
    kinds = ["job.started", *["image.completed"] * order.n, "job.completed"]
    contents = [{"job": {}}, *({"image": image} for image in told["images"]), {"job": told}]
    return [
        {
            "type": kind,
            "sequence": sequence,
            "timestamp": f"2026-01-01T00:00:0{sequence}.000Z",
            "data": {"job_id": JOB_ID, "metadata": order.metadata} | content,
        }
        for sequence, (kind, content) in enumerate(zip(kinds, contents, strict=True), 1)
    ]


def quiet(order: Order = ORDER) -> Order:
    """The same, with nothing written in its files."""
    return replace(order, embed_metadata=False)
