"""Redis that has come back empty: said loudly, and no job is taken as if nothing had happened."""

import pytest

from api.application import build
from app import keys
from app.errors import DataLost
from app.store.epoch import Epoch

BODY = {"prompt": "x", "size": "32x32"}


@pytest.fixture
def seen(servers, client):
    """An API that has taken a job."""
    http = build(servers.settings()).test_client()
    job = http.post("/v1/jobs", json=BODY)
    assert job.status_code == 202
    return http, job.get_json()["id"]


def _forget_what_was_checked(http):
    http.application.extensions["planpaint"].epoch._checked_at = float("-inf")


def test_an_empty_redis_is_no_new_one_to_an_api_that_knew_it(seen, client):
    http, job_id = seen
    epoch = client.get(keys.EPOCH)
    client.flushall()
    _forget_what_was_checked(http)
    for answer in (http.get("/readyz"), http.post("/v1/jobs", json=BODY), http.post("/v1/jobs", json=BODY)):
        assert answer.status_code == 503
        assert answer.get_json()["code"] == "data_lost"
        assert "lost its data" in answer.get_json()["detail"]
        assert answer.headers["Retry-After"]
    assert http.get(f"/v1/jobs/{job_id}").status_code == 404
    assert client.exists(keys.STATS) == 0, "nothing was taken"
    client.set(keys.EPOCH, epoch)  # the data has been brought back
    assert http.post("/v1/jobs", json=BODY).status_code == 202


def test_an_api_that_starts_on_an_empty_redis_begins_anew(seen, servers, client):
    client.flushall()
    http = build(servers.settings()).test_client()
    assert http.post("/v1/jobs", json=BODY).status_code == 202
    assert http.get("/readyz").status_code == 200


def test_another_store_in_its_place_is_noticed_too(client):
    epoch = Epoch(client)
    epoch.check()
    client.set(keys.EPOCH, "another")
    epoch.check()  # believed for a second
    epoch._checked_at = float("-inf")
    for _ in range(2):
        with pytest.raises(DataLost):
            epoch.check()


@pytest.fixture(autouse=True)
def _the_other_tests_api_goes_on(client):
    before = client.get(keys.EPOCH)
    yield
    client.delete(keys.EPOCH)
    if before:
        client.set(keys.EPOCH, before)
