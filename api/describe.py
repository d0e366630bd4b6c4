"""Finishes the OpenAPI description: what the signatures of the routes do not say."""

import copy
from typing import Any

from api.problems import OPENAI_PATHS
from app.settings import Settings

_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a repeat with the same body gets the first answer (Idempotency-Replayed: true), one with another "
    "body 422; remembered for PLANPAINT_IDEMPOTENCY_S, 24 hours unless the operator says otherwise",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]([ -~]*[!-~])?$"},
}
_CANCEL_AFTER = {
    "name": "Cancel-After",
    "in": "header",
    "required": False,
    "description": "what has not ended this long after the creation is canceled: 90, 90s, 5m, 1h30m45s; 5 s to 7 days",
    "schema": {"type": "string", "pattern": "^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s?)?$", "examples": ["90s"]},
}
_PREFER = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "wait=1..60: answer 200 once the job has ended, or 202 when the time is up, which cancels nothing",
    "schema": {"type": "string", "examples": ["wait=1", "respond-async"]},
}
_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "the ETag of an earlier answer: 304 while nothing has changed",
    "schema": {"type": "string"},
}
_LAST_EVENT = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "resume a stream behind this sequence",
    "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
}
_SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "an API key; see `planpaint keys`. A service for its own host alone may ask for none.",
    }
}
#: What becomes of any request that comes without a good key, or too often.
_REFUSALS = ("401", "403", "429", "503")
_FIELDS = {
    name: {"schema": {"type": "string"}, "description": f"draft-ietf-httpapi-ratelimit-headers: {text}"}
    for name, text in (("RateLimit-Policy", "the key's limits"), ("RateLimit", "what is left of them"))
}
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": 4}
#: (method, path) -> header parameters.
_HEADERS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("post", "/v1/jobs"): [_KEY, _CANCEL_AFTER, _PREFER],
    ("post", "/v1/images/generations"): [_KEY, _CANCEL_AFTER],
    ("post", "/v1/images/edits"): [_KEY, _CANCEL_AFTER],
    ("get", "/v1/jobs/{job_id}"): [_MATCH],
    ("get", "/v1/jobs/{job_id}/events"): [_LAST_EVENT],
}
_STATUS_TEXTS = {
    "200": "OK",
    "202": "accepted",
    "204": "done, or nothing more to tell",
    "304": "unchanged",
    "307": "the picture is at Location",
    "400": "not valid HTTP or JSON",
    "401": "no API key, or not a good one",
    "403": "the key lacks the scope for this",
    "404": "no such thing, or another key's",
    "405": "not this method",
    "406": "not in this form",
    "409": "not in this state",
    "410": "removed",
    "413": "too large",
    "414": "the request line is too long",
    "415": "not this media type",
    "422": "a field is wrong; errors names it",
    "429": "more than the key may; Retry-After says when to come back",
    "431": "a header is too large",
    "500": "a fault, or an image that failed",
    "503": "too many images wait, or a server behind this one does not answer; Retry-After says when to come back",
    "504": "not done in time",
}


#: What the HTTP server answers before the application sees the request.
_OF_THE_SERVER = ("400", "414", "431")


def describe(found: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The whole description. `found`: what flask-openapi has collected; it is left as it is."""
    spec = copy.deepcopy(found)
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            if not isinstance(operation, dict):
                continue
            operation.setdefault("parameters", [])
            operation["parameters"] += _HEADERS.get((method, path), [])
            _drop_unmeant(operation["responses"])
            # What is not HTTP, or too much of it, is refused before anybody looks at its path.
            for status in _OF_THE_SERVER:
                operation["responses"].setdefault(status, _problem("Problem"))
            if path != "/healthz":
                operation["responses"].setdefault("500", _problem("Problem"))
            if path.startswith("/v1/"):
                _guard(path, operation)
            _finish_answers(path, operation["responses"])
    for name in ("JobRequest", "GenerationRequest"):
        spec["components"]["schemas"][name]["properties"]["prompt"]["maxLength"] = settings.max_prompt_chars
    _forms(spec)
    spec["components"]["securitySchemes"] = _SECURITY
    return spec


def _drop_unmeant(responses: dict[str, Any]) -> None:
    """flask-openapi gives every route a 422 of its own; ours name the Problem."""
    schema = responses.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if not schema.get("$ref", "").endswith("/Problem"):
        responses.pop("422", None)


def _guard(path: str, operation: dict[str, Any]) -> None:
    operation["security"] = [{"key": []}]
    kind = "OpenAIError" if path.startswith(OPENAI_PATHS) else "Problem"
    for status in _REFUSALS:
        operation["responses"].setdefault(status, _problem(kind))


def _problem(kind: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}}}


def _finish_answers(path: str, responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        response["description"] = _STATUS_TEXTS.get(status, response.get("description", ""))
        content = response.get("content", {})
        body = content.get("application/json", {})
        reference = body.get("schema", {}).get("$ref", "")
        if reference.endswith("/Problem"):
            response["content"] = {"application/problem+json": body}
        elif status in _OF_THE_SERVER:
            content["application/problem+json"] = _problem("Problem")["content"]["application/json"]
        if path.endswith("/events") and status == "200":
            content["text/event-stream"] = {"schema": {"type": "string"}}
        if path == "/metrics" and status == "200":
            response["content"] = {"text/plain": {"schema": {"type": "string"}}}
        if status in ("202", "429", "503"):
            seconds = {"schema": {"type": "integer"}, "description": "seconds, at most 120"}
            response.setdefault("headers", {})["Retry-After"] = seconds
        if path.startswith("/v1/") and status not in ("401", "403"):
            response.setdefault("headers", {}).update(copy.deepcopy(_FIELDS))
        if status == "401":
            response.setdefault("headers", {})["WWW-Authenticate"] = {"schema": {"type": "string"}}


def _forms(spec: dict[str, Any]) -> None:
    """Jobs and edits may come as forms with files."""
    job = {
        "type": "object",
        "properties": {"job": {"$ref": "#/components/schemas/JobRequest"}, "image": _FILES},
        "required": ["job"],
        "additionalProperties": False,
    }
    content = spec["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    content["multipart/form-data"] = {"schema": job, "encoding": {"job": {"contentType": "application/json"}}}
    generation = spec["components"]["schemas"]["GenerationRequest"]
    edit = {
        "type": "object",
        "properties": {name: _as_text(field) for name, field in generation["properties"].items()}
        | {"image": _FILES | {"minItems": 1}},
        "required": ["prompt", "image"],
        "additionalProperties": False,
    }
    spec["components"]["schemas"]["EditForm"] = edit
    spec["paths"]["/v1/images/edits"]["post"]["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/EditForm"}}},
    }


def _as_text(field: dict[str, Any]) -> dict[str, Any]:
    """A field of a form: there is no null in it, what is not given is left out."""
    kinds = [kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"]
    rest = {name: value for name, value in field.items() if name not in ("anyOf", "default")}
    if not kinds:
        return field
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
