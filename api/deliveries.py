"""What became of webhook events, and what can be done about it: redeliver, test the receiver, rotate the secret."""

import re
import secrets

from flask import Blueprint, Response, jsonify
from flask_openapi import APIBlueprint, Tag

from api.access import caller
from api.answers import DeliveriesOut, DeliveryOut, SecretOut, WebhookTestOut
from api.jobs import MISSING, find_job
from api.parts import current
from api.problems import Problem
from api.schemas import DeliveryPath, JobPath, WebhookTestRequest
from app.domain.messages import Event
from app.errors import NotFound
from app.views import delivery_id, delivery_view, endpoint_view

_ID = re.compile(r"dlv_(job_[0-9a-f]{32}|test_[0-9a-f]{32})_([1-9][0-9]{0,2})", re.ASCII)

tag = Tag(name="webhooks", description="Deliveries, tests and the signing secret")
blueprint: Blueprint = APIBlueprint("deliveries", __name__, url_prefix="/v1", abp_tags=[tag])


@blueprint.get(
    "/jobs/<job_id>/deliveries",
    summary="List a job's deliveries",
    responses=MISSING | {"200": DeliveriesOut},
)
def deliveries(path: JobPath) -> Response:
    """Every event that the job's receiver has got or will get: attempts, statuses, reasons and the next try."""
    job = find_job(path.job_id)
    events = [event for event in current().store.events(job.id) if event.type in job.webhook_events]
    found = current().outbox.deliveries(job.id, [event.sequence for event in events])
    data = [delivery_view(event, delivery) for event, delivery in zip(events, found, strict=True)]
    url = job.webhook_url
    endpoint = endpoint_view(url, current().outbox.endpoint(job.owner, url)) if url else None
    return jsonify({"data": data, "endpoint": endpoint})


@blueprint.get(
    "/deliveries/<delivery_id>",
    summary="Look at a delivery",
    responses=MISSING | {"200": DeliveryOut},
)
def delivery(path: DeliveryPath) -> Response:
    """Also that of a test event."""
    return jsonify(_view(_event(path.delivery_id)))


@blueprint.post(
    "/deliveries/<delivery_id>/redeliver",
    summary="Deliver again",
    responses=MISSING | {"202": DeliveryOut},
)
def redeliver(path: DeliveryPath) -> Response:
    """Send the event once more at once, with its old id and a new schedule; also to a paused endpoint."""
    event = _event(path.delivery_id)
    current().outbox.redeliver(event.job_id, event.sequence)
    response = jsonify(_view(event))
    response.status_code = 202
    return response


@blueprint.post(
    "/webhook-test",
    summary="Test a receiver",
    responses={"202": WebhookTestOut} | dict.fromkeys(("400", "413", "415", "422"), Problem),
)
def webhook_test(body: WebhookTestRequest) -> Response:
    """Send a signed `webhook.test` event; its delivery tells what the receiver answered."""
    test_id = f"test_{secrets.token_hex(16)}"
    current().outbox.add_test(test_id, caller().owner, body.url)
    response = jsonify({"delivery": _view(_event(delivery_id(test_id, 1)))})
    response.status_code = 202
    response.headers["Location"] = f"/v1/deliveries/{delivery_id(test_id, 1)}"
    return response


@blueprint.get("/webhook-secret", summary="Read the signing secret", responses={"200": SecretOut})
def secret() -> Response:
    """What receivers verify with, by any library for Standard Webhooks."""
    return _secrets(current().webhook_secrets())


@blueprint.post(
    "/webhook-secret/rotate", summary="Rotate the signing secret", responses={"200": SecretOut, "409": Problem}
)
def rotate() -> Response:
    """Draw a new secret. The one before signs beside it for PLANPAINT_WEBHOOK_OVERLAP_S."""
    return _secrets(current().rotate_webhook_secret())


def _secrets(found: list[str]) -> Response:
    response = jsonify({"key": found[0], "previous": found[1:]})
    response.headers["Cache-Control"] = "no-store"
    return response


def _event(identifier: str) -> Event:
    """The event that a delivery delivers. Raises NotFound or Gone."""
    match = _ID.fullmatch(identifier)
    if match is None:
        raise NotFound(f"no delivery {identifier[:80]}")
    job_id, sequence = match[1], int(match[2])
    if job_id.startswith("test_"):
        receiver, event = current().outbox.test(job_id)
        if sequence == event.sequence and receiver.owner == caller().owner:
            return event
        raise NotFound(f"no delivery {identifier}")
    job = find_job(job_id)
    event_of_job = current().store.event(job_id, sequence)
    if event_of_job is None or event_of_job.type not in job.webhook_events:
        raise NotFound(f"no delivery {identifier}")
    return event_of_job


def _view(event: Event) -> dict[str, object]:
    return delivery_view(event, current().outbox.delivery(event.job_id, event.sequence))
