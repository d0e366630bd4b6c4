"""The shapes of OpenAI's image API, as far as they mean something here; what would be ignored is refused."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

from api.schemas import LEAST_TEMPERATURE, PROMPT_PATTERN, SIZE_PATTERN, URL_SCHEMA, Body
from app.domain.job import SEED_LIMIT
from app.domain.sizes import Size

_TEMPERATURES: list[JsonValue] = [
    {"type": "number", "const": 0},
    {"type": "number", "minimum": LEAST_TEMPERATURE, "maximum": 2},
    {"type": "null"},
]


#: Fields of OpenAI's that mean nothing here; clients that do not set them may send null.
_FOREIGN = frozenset({"output_compression", "partial_images", "style"})


class GenerationRequest(Body):
    """OpenAI's fields, and those of a job that its clients send as `extra_body`."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"model": "glm-image", "prompt": "a red circle", "n": 1}},
    )

    prompt: str = Field(min_length=1, description="what to draw", json_schema_extra={"pattern": PROMPT_PATTERN})
    model: str | None = Field(None, description="glm-image; 404 for any other")
    n: int | None = Field(None, ge=1, le=10, description="default: 1")
    size: str | None = Field(
        None, description='"WIDTHxHEIGHT" or "auto"', json_schema_extra={"pattern": f"^(auto|{SIZE_PATTERN})$"}
    )
    response_format: Literal["url", "b64_json"] | None = Field(None, description="default: both")
    output_format: Literal["png", "jpeg", "webp"] | None = None
    quality: Literal["auto", "standard"] | None = Field(None, description="use steps to change it")
    background: Literal["auto", "opaque"] | None = None
    moderation: Literal["auto", "low"] | None = Field(None, description="there is none")
    stream: Literal[False] | None = Field(None, description="follow /v1/jobs/{id}/events instead")
    user: str | None = Field(None, max_length=256, description="kept in the job's metadata")

    seed: int | None = Field(None, ge=0, lt=SEED_LIMIT)
    steps: int | None = Field(None, ge=1, le=100)
    guidance_scale: float | None = Field(None, ge=0, le=20)
    guidance: float | None = Field(None, ge=0, le=20, description="another name of guidance_scale")
    temperature: float | None = Field(None, ge=0, le=2, json_schema_extra={"anyOf": _TEMPERATURES})
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=65536)
    priority: Literal["realtime", "batch"] | None = None
    webhook_url: str | None = Field(None, max_length=2048, json_schema_extra=URL_SCHEMA)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, data: Any) -> Any:  # noqa: ANN401 - any JSON
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in _FOREIGN}

    @field_validator("stream", mode="before")
    @classmethod
    def _stream(cls, value: object) -> object:
        """Forms hold text."""
        return False if value == "false" else value

    @field_validator("size")
    @classmethod
    def _size(cls, value: str | None) -> str | None:
        return None if value is None or value == "auto" else str(Size.parse(value))

    @field_validator("guidance")
    @classmethod
    def _one_guidance(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("guidance_scale") is not None:
            raise ValueError("must not come with guidance_scale, which is the same")
        return value

    def of_a_job(self) -> dict[str, Any]:
        """The same request to /v1/jobs; None: not given."""
        same = (
            "prompt",
            "n",
            "size",
            "output_format",
            "seed",
            "steps",
            "temperature",
            "top_p",
            "top_k",
            "priority",
            "webhook_url",
        )
        fields = {name: getattr(self, name) for name in same}
        fields["guidance_scale"] = self.guidance_scale if self.guidance is None else self.guidance
        fields["metadata"] = {"user": self.user} if self.user is not None else None
        return fields


class PictureOut(BaseModel):
    url: str | None = Field(None, description="valid for a few minutes")
    b64_json: str | None = None
    index: int
    seed: int


class ImageErrorOut(BaseModel):
    index: int
    code: str
    message: str


class ImagesOut(BaseModel):
    created: int
    data: list[PictureOut] = Field(description="never empty")
    output_format: str
    size: str
    id: str = Field(description="the job")
    errors: list[ImageErrorOut] = Field(description="images that failed beside those in data")


class ModelOut(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(BaseModel):
    object: Literal["list"]
    data: list[ModelOut]


class ModelPath(BaseModel):
    model: str = Field(examples=["glm-image"])


class OpenAIErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    error: OpenAIErrorBody
