"""Health, metrics, workers and the API's own description."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, current_app, jsonify, redirect
from flask_openapi import APIBlueprint, Tag

from api.answers import HealthOut, QueueOut, WorkersOut
from api.describe import describe
from api.parts import current
from api.problems import Problem, problem
from app.errors import DataLost, Unavailable
from app.metrics import render

tag = Tag(name="operations", description="Health, metrics and workers")
blueprint: Blueprint = APIBlueprint("operations", __name__, abp_tags=[tag])


@blueprint.get("/v1/workers", summary="List the running workers", responses={"200": WorkersOut, "503": Problem})
def workers() -> Response:
    """Every worker heard of within the last minute, on any host."""
    return jsonify({"data": [asdict(worker) for worker in current().registry.list()]})


@blueprint.get("/v1/queue", summary="Look at the queue", responses={"200": QueueOut, "503": Problem})
def queue() -> Response:
    """Images in each stage, who works on them, and how long a stage has taken lately."""
    load = current().outlooks.load()
    counts = {name: getattr(load, name) for name in ("queued", "planning", "planned", "painting")}
    workers = {"ar_workers": load.ar_workers, "dit_workers": load.dit_workers}
    times = {name: round(ms / 1000, 3) if ms else None for name, ms in (("ar_s", load.ar_ms), ("dit_s", load.dit_ms))}
    return jsonify(counts | workers | times | {"measured_images": load.images})


@blueprint.get("/healthz", summary="Is this process alive", responses={"200": HealthOut})
def healthz() -> Response:
    """Answers without asking any other server."""
    return jsonify({"status": "ok"})


@blueprint.get("/readyz", summary="Can this process serve", responses={"200": HealthOut, "503": Problem})
def readyz() -> Response:
    """Asks Redis, whether it has the data that it had, and object storage."""
    parts = current()
    for name, ping in (
        ("redis", parts.store.ping),
        ("redis", parts.epoch.check),
        ("object storage", parts.blobs.ping),
    ):
        try:
            ping()
        except DataLost as error:
            return problem(503, "data_lost", "Not ready", str(error))
        except Unavailable:
            return problem(503, "not_ready", "Not ready", f"{name} does not answer")
    return jsonify({"status": "ready"})


@blueprint.get("/metrics", summary="Prometheus metrics", responses={"200": None, "503": Problem})
def metrics() -> Response:
    """Totals of the whole service, the same from every API process."""
    alive = Counter(worker.role for worker in current().registry.list())
    return Response(render(current().store.stats(), alive), content_type="text/plain; version=0.0.4; charset=utf-8")


@blueprint.get("/", doc_ui=False)
def root() -> Any:  # noqa: ANN401 - werkzeug's response
    return redirect("/docs", 302)


@blueprint.get("/docs", doc_ui=False)
def docs() -> Any:  # noqa: ANN401 - werkzeug's response
    return redirect("/docs/swagger", 302)


@blueprint.get("/openapi.json", doc_ui=False)
def openapi() -> Response:
    return jsonify(describe(current_app.api_doc, current().settings))  # type: ignore[attr-defined]
