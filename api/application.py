"""Builds the Flask application. gunicorn calls `create()` in each of its processes."""

from flask import Flask, Response, request
from flask_openapi import Info, OpenAPI
from flask_openapi_swagger.plugins import RegisterPlugin
from werkzeug.exceptions import BadRequest, UnsupportedMediaType

from api import jobs, operations, problems
from api.parts import Parts
from api.problems import Problem
from api.prompts import PromptLimit
from app import __version__, logs, settings, wiring
from app.errors import RefusedInput
from app.settings import Settings


def create() -> Flask:
    """The application, configured from the environment."""
    effective = settings.load()
    logs.configure(effective, "api")
    return build(effective)


def build(effective: Settings) -> Flask:
    app: Flask = OpenAPI(
        "planpaint",
        info=Info(
            title="planpaint", version=__version__, description="Prompts in, pictures out: GLM-Image as a service"
        ),
        validation_error_status=422,
        validation_error_model=Problem,
        validation_error_callback=problems.from_validation,
        doc_ui=False,
        static_folder=None,
    )
    app.config["MAX_CONTENT_LENGTH"] = effective.max_body_bytes
    # Keys keep the order that the views give them.
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.extensions["planpaint"] = _parts(effective)
    app.before_request(_check_body)
    problems.register(app)
    app.register_api(jobs.blueprint)  # type: ignore[attr-defined]
    app.register_api(operations.blueprint)  # type: ignore[attr-defined]
    app.register_blueprint(RegisterPlugin.register(doc_url="../openapi.json"), url_prefix="/docs")
    return app


def _parts(effective: Settings) -> Parts:
    client = wiring.api_client(effective)
    return Parts(
        settings=effective,
        intake=wiring.intake(effective, client),
        store=wiring.job_store(effective, client),
        registry=wiring.registry(client),
        blobs=wiring.api_blobs(effective),
        prompt_limit=PromptLimit.of(effective),
    )


def _check_body() -> Response | None:
    """A body, where one is expected, is a JSON object: 415 for another type, 400 for broken JSON, 422 for the rest."""
    if request.endpoint != "jobs.submit":
        return None
    if not request.is_json:
        raise UnsupportedMediaType("send the job as application/json")
    try:
        body = request.get_json()
    except (BadRequest, RecursionError) as error:
        raise BadRequest("the body is not valid JSON") from error
    if not isinstance(body, dict):
        raise RefusedInput("", "the body must be a JSON object")
    return None
