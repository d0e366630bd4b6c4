"""What comes in and what goes out, as pydantic models. Unknown fields are refused, never dropped."""

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.domain.job import SEED_LIMIT
from app.domain.sizes import MAX_SIDE, Size

#: Below it the logits overflow when they are divided by it; 0 stands for the limit.
LEAST_TEMPERATURE = 0.01
#: Most bytes of `metadata` as JSON.
MAX_METADATA = 8 * 1024
#: Of objects and lists in each other; the writer of answers takes 250.
MOST_DEPTH = 100
#: Shortest and longest `ttl` of a job, seconds.
LEAST_TTL_S, MOST_TTL_S = 60, 31_536_000

_SIDE = "([1-9][0-9]{0,2}|1[0-9]{3}|20[0-3][0-9]|204[0-8])"
#: The rules of `Size.parse` and of `_prompt` in the words of JSON Schema.
SIZE_PATTERN = f"{_SIDE}x{_SIDE}"
PROMPT_PATTERN = r"^[^\u0000]*\S[^\u0000]*$"
_URL = re.compile(r"https?://([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
#: What a host may be is checked beyond this.
URL_SCHEMA: dict[str, Any] = {"format": "uri", "pattern": "^https?://"}
_STATUSES = "(queued|running|succeeded|partial|failed|canceling|canceled|expired)"

Finite = Annotated[float, Field(allow_inf_nan=False)]
WebhookEvent = Literal["job.started", "image.completed", "image.failed", "image.canceled", "job.completed"]
Status = Literal["queued", "running", "succeeded", "partial", "failed", "canceling", "canceled", "expired"]


class Body(BaseModel):
    """What a caller sends as JSON: no field is converted, but that JSON's whole numbers may be written as 7.0."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, data: Any) -> Any:  # noqa: ANN401 - any JSON
        if not isinstance(data, dict):
            return data
        return {name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in data.items()}


class ReusedImage(Body):
    """An image whose stored prior tokens are painted again."""

    job: str = Field(pattern=r"^job_[0-9a-f]{32}$")
    index: int = Field(ge=0, le=9)


class JobRequest(Body):
    """A job: one prompt, 1 to 10 pictures."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "prompt": "a red circle on a blue background",
                "size": "256x256",
                "n": 2,
                "seed": 7,
                "steps": 12,
            },
        },
    )

    prompt: str | None = Field(
        None,
        description="what to draw; text to appear in the picture stands in quotes; required without reuse_prior",
        json_schema_extra={"minLength": 1, "pattern": PROMPT_PATTERN},
    )
    reuse_prior: ReusedImage | None = Field(
        None, description="skip AR: paint this image's plan again; prompt and size default to its own"
    )
    images: list[str] = Field(
        default_factory=list, max_length=4, description="pictures to edit: base64, data URLs or https URLs"
    )
    size: str | None = Field(
        None,
        description=f'"WIDTHxHEIGHT", sides from 1 to {MAX_SIDE} pixels',
        json_schema_extra={"pattern": f"^{SIZE_PATTERN}$"},
    )
    n: int = Field(1, ge=1, le=10, description="number of pictures; picture i has seed (seed + i) mod 2^32")
    seed: int | None = Field(None, ge=0, lt=SEED_LIMIT, description="drawn by the server when absent, and echoed")
    steps: int | None = Field(None, ge=1, le=100, description="denoising steps")
    guidance_scale: Finite = Field(1.5, ge=0, le=20, description="classifier-free guidance; 1 or less: none")
    temperature: Finite = Field(
        0.9,
        ge=0,
        le=2,
        description="of the AR stage; 0: always the likeliest token",
        json_schema_extra={"anyOf": [{"const": 0}, {"minimum": LEAST_TEMPERATURE}]},
    )
    top_p: Finite = Field(0.75, gt=0, le=1, description="nucleus of the AR stage")
    top_k: int = Field(0, ge=0, le=65536, description="so many likeliest tokens of the AR stage only; 0: no such limit")
    output_format: Literal["png", "jpeg", "webp"] = "png"
    embed_metadata: bool = Field(True, description="write prompt, seed, parameters, model and job into the file")
    priority: Literal["realtime", "batch"] = Field(
        "realtime", description="batch waits behind realtime, never for ever"
    )
    webhook_url: str | None = Field(
        None, max_length=2048, description="receives signed events of this job", json_schema_extra=URL_SCHEMA
    )
    webhook_events: list[WebhookEvent] | None = Field(
        None, min_length=1, description="which types it receives; default: all but image.canceled"
    )
    ttl: int | None = Field(
        None, ge=LEAST_TTL_S, le=MOST_TTL_S, description="seconds that job and pictures are kept after the end"
    )
    dry_run: bool = Field(False, description="check, price and estimate; queue nothing")
    metadata: dict[str, Any] = Field(default_factory=dict, description="yours; echoed in every answer and event")

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt(cls, value: object) -> object:
        if isinstance(value, str):
            if not value.strip():
                raise ValueError("must not be empty")
            if "\x00" in value:
                raise ValueError("must not contain NUL characters")
            _refuse_surrogates(value)
        return value

    @field_validator("temperature")
    @classmethod
    def _temperature(cls, value: float) -> float:
        if 0 < value < LEAST_TEMPERATURE:
            raise ValueError(f"must be 0 or at least {LEAST_TEMPERATURE}")
        return value

    @field_validator("size")
    @classmethod
    def _size(cls, value: str | None) -> str | None:
        return None if value is None else str(Size.parse(value))

    @field_validator("webhook_url", mode="before")
    @classmethod
    def _webhook_url(cls, value: object) -> object:
        return check_receiver(value)

    @field_validator("metadata")
    @classmethod
    def _metadata(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            depth = _depth(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("must be plain JSON without NaN or Infinity, and not nested too deep") from error
        if depth > MOST_DEPTH:
            raise ValueError(f"must be nested at most {MOST_DEPTH} deep, this is {depth}")
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_METADATA:
            raise ValueError(f"must be at most {MAX_METADATA} bytes as JSON, this is {size}")
        _refuse_surrogates(text)
        return value


def check_receiver(value: object) -> object:
    """A webhook URL that can be posted to; its addresses are checked when it is."""
    if not isinstance(value, str):
        return value
    if not _URL.fullmatch(value):
        raise ValueError("must be an absolute http or https URL in ASCII: xn--... and %.. stand for other characters")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry credentials")
    try:
        requests.Request("POST", value).prepare()
    except requests.exceptions.RequestException as error:
        raise ValueError("must be an absolute http or https URL") from error
    return value


def _depth(value: Any) -> int:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _refuse_surrogates(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be valid Unicode: it contains a lone surrogate")


class WebhookTestRequest(Body):
    """Where a test event is sent."""

    url: str = Field(max_length=2048, examples=["https://example.org/hook"], json_schema_extra=URL_SCHEMA)

    @field_validator("url", mode="before")
    @classmethod
    def _url(cls, value: object) -> object:
        return check_receiver(value)


class JobPath(BaseModel):
    job_id: str = Field(description="id of the job", examples=["job_0123456789abcdef0123456789abcdef"])


class ImagePath(JobPath):
    index: int = Field(description="index of the image in its job, from 0")


class ContentQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    variant: Literal["picture", "thumbnail"] = Field("picture", description="the thumbnail is a WebP")


class DeliveryPath(BaseModel):
    delivery_id: str = Field(description="id of the delivery", examples=["dlv_job_0123456789abcdef0123456789abcdef_1"])


class WaitQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    wait: int = Field(0, ge=0, le=25, description="seconds to hold the answer until the job changes")


class EventQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: str | None = Field(None, pattern=r"^[0-9]{1,9}$", description="sequence of the last event that is known")


class ListQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100)
    cursor: str | None = Field(
        None,
        max_length=200,
        description="next_cursor of the page before; any other is refused",
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]+$"},
    )
    status: str | None = Field(
        None,
        max_length=200,
        description="one or more, separated by commas",
        json_schema_extra={"pattern": f"^{_STATUSES}(,{_STATUSES})*$"},
    )
    created_after: str | None = Field(
        None,
        max_length=40,
        description="RFC 3339",
        examples=["2026-01-31T12:00:00Z"],
        json_schema_extra={"format": "date-time"},
    )
