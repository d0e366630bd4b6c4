"""The receiver of webhooks believes what is signed, and says of the rest what is wrong with it."""

import json

import pytest
from standardwebhooks import Webhook
from werkzeug.test import Client

from app.webhooks.signing import headers, new_secret
from loadtest.ledger import Ledger
from loadtest.receiver import Receiver
from tests.loadtest.made import JOB_ID, ORDER, log_of


@pytest.fixture
def told():
    return []


@pytest.fixture
def receiver(told):
    receiver = Receiver(lambda kind, age_ms, length, wrong: told.append((kind, wrong)))
    receiver.secrets = [new_secret(), new_secret()]
    return receiver


def _send(receiver, event, *, secret=None, event_id=None, body=None):
    text = json.dumps(event)
    signed = headers([secret or receiver.secrets[1]], event_id or f"evt_{event['sequence']}", text)
    return Client(receiver).post("/", data=body or text, headers=signed).status_code


def test_signed_events_are_confirmed_and_make_the_job_s_log(receiver, told):
    for event in reversed(log_of()):
        assert _send(receiver, event) == 204
    assert told == [(event["type"], None) for event in reversed(log_of())]
    receiver.log(JOB_ID).check(ORDER, ("succeeded",))


def test_a_repeat_a_used_id_and_a_foreign_signature_are_refused(receiver, told):
    one, two, *_ = log_of()
    assert _send(receiver, one) == 204
    assert _send(receiver, one) == 400
    assert _send(receiver, two, event_id="evt_1") == 400
    assert _send(receiver, two, secret=new_secret()) == 400
    assert _send(receiver, log_of()[2], body=json.dumps(log_of()[3])) == 400
    wrong = [str(error) for _, error in told[1:]]
    assert "told twice" in wrong[0]
    assert "the event with the id evt_1" in wrong[1]
    assert [("does not verify" in text) for text in wrong[2:]] == [True, True]


def test_what_is_no_event_is_refused(receiver, told):
    text = "[]"
    assert Client(receiver).post("/", data=text, headers=headers(receiver.secrets, "evt_1", text)).status_code == 400
    assert Client(receiver).post("/", data="{}").status_code == 400
    assert Client(receiver).get("/").status_code == 400
    large = json.dumps({"type": "x" * 30_000})
    assert Client(receiver).post("/", data=large, headers=headers(receiver.secrets, "evt_1", large)).status_code == 400
    assert all(error is not None for _, error in told)
    assert receiver.logs == {}


def test_the_helper_signs_as_the_standard_library_does():
    secret = new_secret()
    assert Webhook(secret).verify("{}", headers([secret], "evt_1", "{}")) == {}


def test_a_job_that_does_not_end_is_lost():
    ledger = Ledger()
    ledger.accept(JOB_ID, ORDER).status = "succeeded"
    lost = ledger.accept("job_" + "6" * 32, ORDER)
    assert ledger.accept("job_" + "6" * 32, ORDER) is lost, "a repeat is the same job"
    totals = ledger.totals()
    assert (totals.accepted, totals.images, totals.ended) == (2, 4, {"succeeded": 1})
    assert totals.lost == ["job_" + "6" * 32]
    assert totals.unchecked == [JOB_ID]
