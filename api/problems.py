"""Every error answer is an RFC 9457 problem with a machine code; wrong input names its field."""

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from flask import Flask, Response, jsonify, request
from gunicorn.http.errors import ParseException
from pydantic import BaseModel, Field, ValidationError
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

from app.errors import Conflict, DataLost, Gone, KeyReused, NotFound, NotReady, RefusedInput, Unavailable

log = structlog.get_logger(__name__)

#: Seconds after which a caller should try again when a server of ours is out of reach.
RETRY_AFTER_S = 2
#: Codes that stand for a registered kind of problem (draft-ietf-httpapi-ratelimit-headers).
_REGISTERED = {"quota_exceeded": "quota-exceeded", "queue_full": "temporary-reduced-capacity"}
_REGISTRY = "https://iana.org/assignments/http-problem-types#"
#: Paths whose callers expect OpenAI's shape of an error.
OPENAI_PATHS = ("/v1/images/", "/v1/models")


class FieldError(BaseModel):
    detail: str = Field(description="what is wrong", examples=["must be at most 10"])
    pointer: str = Field(description="JSON pointer to the field", examples=["/n"])


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field("about:blank", description="URI that names the kind of problem")
    title: str = Field(examples=["Invalid input"])
    status: int = Field(examples=[422])
    code: str = Field(description="stable machine code", examples=["invalid_input"])
    detail: str = Field(examples=["n: must be at most 10"])
    errors: list[FieldError] = Field(default_factory=list, description="one entry a wrong field")


def problem(status: int, code: str, title: str, detail: str, *, errors: Sequence[tuple[str, str]] = ()) -> Response:
    """A problem answer. `errors`: (field, detail) pairs."""
    if request.path.startswith(OPENAI_PATHS):
        return _openai_error(status, code, detail, errors[0][0] if errors else None)
    body = Problem(
        type=_REGISTRY + _REGISTERED[code] if code in _REGISTERED else f"/problems/{code.replace('_', '-')}",
        title=title,
        status=status,
        code=code,
        detail=detail,
        errors=[FieldError(detail=text, pointer=f"/{field}" if field else "") for field, text in errors],
    )
    response = jsonify(body.model_dump())
    response.status_code = status
    response.content_type = "application/problem+json"
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _openai_error(status: int, code: str, message: str, param: str | None) -> Response:
    """The same problem as OpenAI's clients read it: they lose the message of any other shape."""
    status = 400 if status == 422 else status
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param or None, "code": code}}
    response = jsonify(body)
    response.status_code = status
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    elif status != 429:
        # Their clients would send it twice more by themselves.
        response.headers["x-should-retry"] = "false"
    return response


def invalid(errors: Sequence[tuple[str, str]]) -> Response:
    detail = "; ".join(f"{field}: {text}" if field else text for field, text in errors)
    return problem(422, "invalid_input", "Invalid input", detail, errors=errors)


def refuse_repeated(given: MultiDict[str, str]) -> None:
    """Of a parameter or a field of a form that is given twice one value would be ignored."""
    for name, values in given.lists():
        if len(values) > 1:
            raise RefusedInput(name[:80], "comes more than once")


def from_validation(error: ValidationError) -> Response:
    """Pydantic's findings, without the input: it may be a megabyte, or a secret."""
    return invalid(
        [("/".join(_escaped(part) for part in e["loc"]), sentence(e)) for e in error.errors(include_url=False)]
    )


def _escaped(part: str | int) -> str:
    """One step of a JSON pointer (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")


def sentence(error: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    """One of pydantic's findings in our words."""
    if error["type"] == "extra_forbidden":
        return "is not a known field"
    if error["type"] == "missing":
        return "is required"
    return str(error["msg"]).removeprefix("Value error, ")


#: Errors whose own sentence is for the caller.
_PLAIN = (
    (Gone, 410, "gone", "Gone"),
    (NotFound, 404, "not_found", "Not found"),
    (Conflict, 409, "conflict", "Conflict"),
    (NotReady, 409, "not_ready", "Not ready"),
)


def _plain(status: int, code: str, title: str) -> Callable[[Exception], Response]:
    return lambda error: problem(status, code, title, str(error))


def _broken_body(_: Exception) -> Response:
    """Of a body in chunks, which the server reads no earlier than the application does."""
    return problem(400, "bad_request", "Bad Request", "the body is not valid HTTP")


def register(app: Flask) -> None:
    """Turn our errors, HTTP errors and bugs into problems."""

    @app.errorhandler(RefusedInput)
    def refused(error: RefusedInput) -> Response:
        return invalid([(error.field, error.detail)])

    for kind, status, code, title in _PLAIN:
        app.register_error_handler(kind, _plain(status, code, title))
    app.register_error_handler(ParseException, _broken_body)

    @app.errorhandler(KeyReused)
    def key_reused(error: KeyReused) -> Response:
        return problem(
            422,
            "idempotency_key_reused",
            "Idempotency key reused",
            str(error),
            errors=[("Idempotency-Key", str(error))],
        )

    @app.errorhandler(DataLost)
    def data_lost(error: DataLost) -> Response:
        log.error("data_lost", error=str(error))
        return problem(503, "data_lost", "Data lost", str(error))

    @app.errorhandler(Unavailable)
    def unavailable(error: Unavailable) -> Response:
        log.warning("unavailable", error=str(error))
        return problem(503, "unavailable", "Temporarily unavailable", "a server behind this service does not answer")

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        status = error.code or 500
        title = error.name
        answer = problem(status, title.lower().replace(" ", "_"), title, error.description or title)
        for name, value in error.get_headers():
            if name.lower() not in ("content-type", "content-length"):
                answer.headers[name] = value
        return answer

    @app.errorhandler(Exception)
    def bug(error: Exception) -> Response:
        log.exception("bug", error=type(error).__name__)
        return problem(500, "internal_error", "Internal error", "this is a fault of the service, and has been logged")
