"""Condition images of a job: base64 or URLs in the JSON, or files of a multipart form. Each becomes a checked PNG."""

import base64
import binascii
from collections.abc import Iterator

import requests
from flask import request
from ssrfguard.requests import Session

from api.schemas import JobRequest
from app.checkpoint import Checkpoint
from app.decode import decode
from app.errors import RefusedInput
from app.outbound import Outbound, RefusedAddress
from app.settings import Settings

#: Most condition images of a job.
MOST_IMAGES = 4
#: OpenAI's client names one file in the first way, several in the second.
_FILE_NAMES = {"image", "image[]"}
_TIMEOUT_S = (3.0, 10.0)
#: Seconds for one picture, however slowly its bytes come.
_LIMIT_S = 30.0
_CHUNK = 64 * 1024


class ImageIntake:
    def __init__(self, settings: Settings) -> None:
        self._processor = Checkpoint(settings.checkpoint).part("processor")
        self._max_pixels = settings.max_image_pixels
        self._max_bytes = settings.max_image_bytes
        self._outbound = Outbound(settings.webhook_networks)
        self._edits = settings.ar_backend == "engine"

    def read(self, body: JobRequest) -> tuple[bytes, ...]:
        """Every condition image of the request at hand, as PNG. Raises RefusedInput naming the field."""
        sources = list(self._sources(body))
        if len(sources) > MOST_IMAGES:
            raise RefusedInput("images", f"must be at most {MOST_IMAGES}, this has {len(sources)}")
        if sources and not self._edits:
            raise RefusedInput("images", "are not taken by this service: its AR server plans from text alone")
        return tuple(
            decode(data, self._processor, max_pixels=self._max_pixels, field=f"images/{number}")
            for number, data in enumerate(sources)
        )

    def _sources(self, body: JobRequest) -> Iterator[bytes]:
        files = []
        if request.mimetype == "multipart/form-data":
            if unknown := sorted(set(request.files) - _FILE_NAMES):
                raise RefusedInput(unknown[0][:80], "is no known file; pictures are named image")
            files = request.files.getlist("image") + request.files.getlist("image[]")
        if files and body.images:
            raise RefusedInput("images", "must come as files or in the JSON, not both")
        for number, file in enumerate(files):
            yield self._checked(file.read(self._max_bytes + 1), f"images/{number}")
        for number, text in enumerate(body.images):
            field = f"images/{number}"
            if text.startswith(("http://", "https://")):
                yield self._fetched(text, field)
            else:
                yield self._checked(_from_base64(text, field), field)

    def _checked(self, data: bytes, field: str) -> bytes:
        if not data:
            raise RefusedInput(field, "is empty")
        if len(data) > self._max_bytes:
            raise RefusedInput(field, f"must be at most {self._max_bytes} bytes")
        return data

    def _fetched(self, url: str, field: str) -> bytes:
        def call(session: Session) -> bytes:
            return self._get(session, url, field)

        try:
            return self._checked(self._outbound.reach(call, limit_s=_LIMIT_S), field)
        except RefusedAddress as refusal:
            raise RefusedInput(field, f"may not be fetched: {refusal}") from refusal
        except requests.exceptions.RequestException as error:
            raise RefusedInput(field, f"cannot be fetched: {type(error).__name__}") from error

    def _get(self, session: Session, url: str, field: str) -> bytes:
        with session.get(url, timeout=_TIMEOUT_S, allow_redirects=False, stream=True) as response:
            if response.status_code != 200:
                raise RefusedInput(field, f"cannot be fetched: HTTP {response.status_code}")
            data = b""
            for chunk in response.iter_content(_CHUNK):
                data += chunk
                if len(data) > self._max_bytes:
                    break
            return data


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG that we made."""
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _from_base64(text: str, field: str) -> bytes:
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise RefusedInput(field, "must be a data URL in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedInput(field, "must be base64, a data URL or an http(s) URL") from error
