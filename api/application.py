"""Builds the Flask application. gunicorn calls `create()` in each of its processes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from flask import Flask, Request, current_app, request
from flask.json.provider import DefaultJSONProvider
from flask_openapi import Info, OpenAPI
from flask_openapi_swagger.plugins import RegisterPlugin
from werkzeug.exceptions import BadRequest, ClientDisconnected, RequestEntityTooLarge, UnsupportedMediaType
from werkzeug.utils import cached_property

from api import access, deliveries, events, jobs, openai, operations, problems
from api.feeds import Feeds
from api.gate import Gate
from api.hygiene import Hygiene
from api.images import MOST_IMAGES, ImageIntake
from api.parts import Parts
from api.problems import Problem, refuse_repeated
from api.prompts import PromptLimit
from api.readers import Readers
from app import __version__, logs, settings, wiring
from app.errors import RefusedInput
from app.settings import Settings

#: Endpoints that take a body, and what is said to another media type.
_WITH_BODY = {
    "jobs.submit": "send the job as application/json, or as multipart/form-data with files",
    "openai.generations": "send the request as application/json",
    "openai.edits": "send multipart/form-data with files",
    "deliveries.webhook_test": "send the test as application/json",
}
#: Of these, what may be a form, and what has to be one.
_FORM_ALONE = "openai.edits"
_FORMS = frozenset({"jobs.submit", _FORM_ALONE})
#: Endpoints whose parameters stand in the query.
_WITH_QUERY = frozenset({"jobs.page", "jobs.get", "jobs.content", "events.events"})
_WITHOUT_QUERY = frozenset(_WITH_BODY)


def create() -> Flask:
    """The application, configured from the environment."""
    effective = settings.load()
    logs.configure(effective, "api")
    return build(effective)


def build(effective: Settings) -> Flask:
    app: Flask = _Application(
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
    app.request_class = JobHttpRequest
    app.config["MAX_CONTENT_LENGTH"] = MOST_IMAGES * effective.max_image_bytes + effective.max_body_bytes
    app.json = _Json(app)
    app.extensions["planpaint"] = _parts(effective)
    access.register(app)
    app.before_request(_check_query)
    app.before_request(_check_body)
    problems.register(app)
    app.register_api(jobs.blueprint)  # type: ignore[attr-defined]
    app.register_api(events.blueprint)  # type: ignore[attr-defined]
    app.register_api(deliveries.blueprint)  # type: ignore[attr-defined]
    app.register_api(openai.blueprint)  # type: ignore[attr-defined]
    app.register_api(operations.blueprint)  # type: ignore[attr-defined]
    app.wsgi_app = Hygiene(app.wsgi_app, effective, logs.AccessLog(effective))  # type: ignore[method-assign]
    app.register_blueprint(RegisterPlugin.register(doc_url="../openapi.json"), url_prefix="/docs")
    return app


def _parts(effective: Settings) -> Parts:
    client, blobs = wiring.api_client(effective), wiring.api_blobs(effective)
    epoch, store = wiring.epoch(client), wiring.job_store(effective, client)
    return Parts(
        settings=effective,
        gate=Gate(effective, wiring.api_keys(client), wiring.quotas(client)),
        epoch=epoch,
        intake=wiring.intake(effective, client, blobs, epoch),
        store=store,
        registry=wiring.registry(client),
        blobs=blobs,
        prompt_limit=PromptLimit.of(effective),
        images=ImageIntake(effective),
        answers=wiring.answers(client),
        changes=wiring.changes(client),
        feeds=Feeds(store),
        outlooks=wiring.outlooks(client),
        outbox=wiring.outbox(effective, client),
        readers=Readers(effective.sse_readers),
        webhook_secrets=lambda: wiring.webhook_secrets(effective, client),
        rotate_webhook_secret=lambda: wiring.rotate_webhook_secret(effective, client),
    )


class _Application(OpenAPI):  # type: ignore[misc]
    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Nothing here is asynchronous; Flask would look at each function again for each request."""
        return func


class _Json(DefaultJSONProvider):
    """JSON of which nothing is dropped: where a name comes twice, one of the two values would be."""

    #: Keys keep the order that the views give them.
    sort_keys = False

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:  # noqa: ANN401 - JSON
        """Raises ValueError; RefusedInput for a name that comes twice in an object."""
        return super().loads(s, object_pairs_hook=_once, **kwargs)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        raise RefusedInput("", f'"{repeated[:80]}" comes more than once in one object')
    return found


class JobHttpRequest(Request):
    """A job may also come as a multipart form: its field `job` is the JSON, its files `image` the condition images."""

    @cached_property
    def is_form(self) -> bool:
        return self.mimetype == "multipart/form-data"

    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:  # noqa: ANN401 - JSON
        return self._job if self.is_form else super().get_json(force, silent, cache)

    @cached_property
    def _job(self) -> Any:  # noqa: ANN401 - JSON
        try:
            return current_app.json.loads(self.form["job"])
        except (KeyError, ValueError) as error:
            raise BadRequest("the form's field job is not valid JSON") from error


def _check_query() -> None:
    """What would be ignored is refused: a parameter given twice, or any where the body holds them all."""
    if not request.query_string:
        return
    if request.endpoint in _WITHOUT_QUERY and request.args:
        raise RefusedInput(next(iter(request.args))[:80], "is not taken in the query; send it in the body")
    if request.endpoint in _WITH_QUERY:
        refuse_repeated(request.args)


def _check_body() -> None:
    """A body, where one is expected, is a JSON object or a form: 415 for another type, 400 for broken JSON, 422 for the
    rest."""
    if request.endpoint not in _WITH_BODY:
        return
    form = request.endpoint in _FORMS and isinstance(request, JobHttpRequest) and request.is_form
    if not (form or (request.is_json and request.endpoint != _FORM_ALONE)):
        raise UnsupportedMediaType(_WITH_BODY[request.endpoint])
    if request.content_encoding not in (None, "identity"):
        raise UnsupportedMediaType("send the body as it is, without a Content-Encoding")
    try:
        _check_form() if form else _check_json()
    except ClientDisconnected as error:
        raise BadRequest("the body stopped before its end") from error


def _check_form() -> None:
    # Looking at a field reads the whole body.
    refuse_repeated(request.form)
    if request.endpoint == _FORM_ALONE:
        return
    if unknown := sorted(set(request.form) - {"job"}):
        raise RefusedInput(unknown[0][:80], "is no field of the form, which has the JSON as job and files as image")
    _check_object("the field job of the form")


def _check_json() -> None:
    request.max_content_length = current_app.extensions["planpaint"].settings.max_body_bytes
    _check_object("the body")


def _check_object(what: str) -> None:
    try:
        body = request.get_json()
    except (ClientDisconnected, RequestEntityTooLarge):
        raise
    except (BadRequest, RecursionError) as error:
        raise BadRequest(f"{what} is not valid JSON") from error
    if not isinstance(body, dict):
        raise RefusedInput("", "the body must be a JSON object")
