"""Lists, conditional reads and long polls; cancel, delete and what is left afterwards."""

import re
import threading
import time
from pathlib import Path

import pytest
import requests

from app import keys, wiring
from app.domain.messages import ImageRef
from app.service import Upkeep
from tests.api.orders import finish, painting, planned
from tests.servers import wait_until
from tests.store.orders import plan


def _pages(http, **query):
    found, cursor = [], None
    while True:
        answer = http.get("/v1/jobs", query_string=query | ({"cursor": cursor} if cursor else {})).get_json()
        found.append([job["id"] for job in answer["data"]])
        cursor = answer["next_cursor"]
        assert answer["has_more"] == (cursor is not None)
        if cursor is None:
            return found


# --- lists


def test_pages_hold_every_job_once_newest_first_while_new_ones_come(http, submit):
    ids = [submit()["id"] for _ in range(7)]
    first = http.get("/v1/jobs?limit=3").get_json()
    submit()
    cursor, seen = first["next_cursor"], [job["id"] for job in first["data"]]
    while cursor:
        answer = http.get(f"/v1/jobs?limit=3&cursor={cursor}").get_json()
        seen += [job["id"] for job in answer["data"]]
        cursor = answer["next_cursor"]
    assert sorted(seen) == sorted(ids)
    created = {job_id: http.get(f"/v1/jobs/{job_id}").get_json()["created_at"] for job_id in ids}
    assert [created[job_id] for job_id in seen] == sorted(created.values(), reverse=True)


def test_jobs_of_one_millisecond_are_not_lost_between_pages(http, submit, client):
    ids = [submit()["id"] for _ in range(6)]
    for job_id in ids:
        client.zadd(keys.jobs_of("anybody"), {job_id: 1_700_000_000_000})
        client.hset(keys.job(job_id), "created_at", 1_700_000_000_000)
    pages = _pages(http, limit=2)
    assert [job_id for page in pages for job_id in page] == sorted(ids, reverse=True)


def test_filters(http, submit, done):
    one, two, three = (submit() for _ in range(3))
    done(two)
    http.post(f"/v1/jobs/{three['id']}/cancel")
    assert _pages(http, status="succeeded") == [[two["id"]]]
    assert _pages(http, status="queued,canceled") == [[three["id"], one["id"]]]
    assert _pages(http, created_after=two["created_at"])[0][0] == three["id"]
    assert two["id"] not in _pages(http, created_after=two["created_at"])[0]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("cursor=!!", "cursor"),
        ("cursor=MTIz", "cursor"),
        ("cursor=%C3%BC", "cursor"),
        ("status=done", "status"),
        ("created_after=yesterday", "created_after"),
        ("colour=red", "colour"),
    ],
)
def test_a_bad_query_names_its_field(http, query, field):
    answer = http.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, f"/{field}")


# --- conditional reads and long polls


def test_an_unchanged_job_is_304_and_a_changed_one_is_not(http, submit, store):
    job = submit()
    url = f"/v1/jobs/{job['id']}"
    tag = http.get(url).headers["ETag"]
    answer = http.get(url, headers={"If-None-Match": f'"other", {tag}'})
    assert (answer.status_code, answer.data, answer.headers["ETag"]) == (304, b"", tag)
    assert http.get(url, headers={"If-None-Match": f"W/{tag}"}).status_code == 304, "as caches write it"
    assert http.get(url, headers={"If-None-Match": "*"}).status_code == 304
    lease = plan(store, ImageRef(job["id"], 0))
    answer = http.get(url, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.get_json()["status"]) == (200, "running")
    tag = answer.headers["ETag"]
    store.renew(lease, step=1)
    assert http.get(url, headers={"If-None-Match": tag}).status_code == 200, "a step is a change"


def test_the_readmes_wait_for_the_end_of_a_job_ends(http, submit, done):
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (pattern,) = re.findall(r"until curl .* grep -q '(.*)'; do", readme)
    job = submit()
    assert pattern not in http.get(f"/v1/jobs/{job['id']}").text
    done(job)
    assert pattern in http.get(f"/v1/jobs/{job['id']}").text


def test_a_long_poll_is_held_until_the_job_changes(http, submit, store):
    job = submit()
    url = f"/v1/jobs/{job['id']}"
    tag = f'"v0.00000000", {http.get(url).headers["ETag"]}'
    worker = threading.Timer(0.5, lambda: plan(store, ImageRef(job["id"], 0)))
    worker.start()
    started = time.monotonic()
    answer = http.get(f"{url}?wait=20", headers={"If-None-Match": tag})
    worker.join()
    assert (answer.status_code, answer.get_json()["status"]) == (200, "running")
    assert 0.4 < time.monotonic() - started < 15


def test_a_long_poll_without_news_is_304(http, submit):
    url = f"/v1/jobs/{submit()['id']}"
    tag = http.get(url).headers["ETag"]
    assert http.get(f"{url}?wait=1", headers={"If-None-Match": tag}).status_code == 304
    assert http.get(f"{url}?wait=26").status_code == 422


def test_a_poll_of_an_ended_job_is_never_held(http, submit, done):
    job = submit()
    done(job)
    started = time.monotonic()
    answer = http.get(f"/v1/jobs/{job['id']}?wait=25")
    assert time.monotonic() - started < 10
    assert answer.status_code == 200
    assert "Retry-After" not in answer.headers


def test_reads_are_repeatable_until_the_job_expires(http, submit, done):
    """The first read of a result deleted it.

    SchweizerischeBundesbahnen/ch.sbb.polarion.extension.pdf-exporter#172, ConesaLab/paintomics4#155.
    """
    job = submit()
    done(job)
    for _ in range(3):
        assert http.get(f"/v1/jobs/{job['id']}").get_json()["status"] == "succeeded"
        answer = http.get(f"/v1/jobs/{job['id']}/images/0/content")
        assert requests.get(answer.headers["Location"], timeout=5).content == b"picture"
    assert http.get(f"/v1/jobs/{job['id']}/images/0").get_json()["status"] == "succeeded"


# --- cancel


def test_canceling_a_queued_job_touches_no_other(http, submit, store):
    """invoke-ai/InvokeAI#6049, Comfy-Org/ComfyUI#2566, Comfy-Org/ComfyUI#9607: a cancel hit whichever job ran."""
    running, queued = submit(), submit()
    lease = painting(store, running["id"])
    answer = http.post(f"/v1/jobs/{queued['id']}/cancel")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "canceled")
    assert http.get(f"/v1/jobs/{running['id']}").get_json()["status"] == "running"
    store.renew(lease, step=3)


def test_canceling_a_running_job_is_202_until_its_worker_lets_go(http, submit, store, settings):
    """rq/rq#1371, rq/rq#684, vllm-project/vllm-omni#1347: only queued jobs could be canceled."""
    job = submit(n=3)
    finish(store, settings, job["id"], 0)
    lease = painting(store, job["id"], 1)
    for _ in range(2):
        answer = http.post(f"/v1/jobs/{job['id']}/cancel")
        assert (answer.status_code, answer.get_json()["status"]) == (202, "canceling")
        assert answer.headers["Retry-After"]
    assert [i["status"] for i in answer.get_json()["images"]] == ["succeeded", "running", "canceled"]
    assert store.canceled([lease]) == [lease]
    with pytest.raises(Exception, match=str(lease.ref)):
        store.renew(lease, step=2)
    answer = http.post(f"/v1/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "canceled")
    assert answer.get_json()["images"][0]["content_url"], "finished images stay"


def test_canceling_what_has_ended_otherwise_is_409(http, submit, done):
    job = submit()
    done(job)
    answer = http.post(f"/v1/jobs/{job['id']}/cancel")
    assert (answer.status_code, answer.get_json()["code"]) == (409, "conflict")


def test_a_picture_after_its_last_step_is_uploading(http, submit, store):
    job = submit(steps=3)
    store.renew(painting(store, job["id"]), step=3)
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["images"][0]["status"] == "uploading"


def test_one_bad_image_leaves_the_others(http, submit, store, settings):
    """AUTOMATIC1111/stable-diffusion-webui#7943, Comfy-Org/ComfyUI#9952: one bad image killed its batch."""
    job = submit(n=2)
    store.fail(plan(store, ImageRef(job["id"], 0)), "broken", "it broke")
    finish(store, settings, job["id"], 1)
    found = http.get(f"/v1/jobs/{job['id']}").get_json()
    assert found["status"] == "partial"
    assert [image["status"] for image in found["images"]] == ["failed", "succeeded"]


# --- delete and expire


def _objects(settings, job_id):
    blobs = wiring.worker_blobs(settings)
    found = blobs._client.list_objects_v2(Bucket=blobs._bucket, Prefix=f"jobs/{job_id}/")
    return [each["Key"] for each in found.get("Contents", ())]


def _own_keys(client, job_id):
    return [key for key in client.keys("*") if job_id.encode() in key]


def test_delete_removes_everything_but_the_tombstone(http, submit, store, settings, client):
    job = submit(n=2, webhook_url="http://127.0.0.1:1/")
    url = f"/v1/jobs/{job['id']}"
    assert http.delete(url).status_code == 409
    for index in range(2):
        finish(store, settings, job["id"], index)
    assert len(_objects(settings, job["id"])) == 2
    answer = http.delete(url)
    assert (answer.status_code, answer.data) == (204, b"")
    assert _objects(settings, job["id"]) == []
    assert _own_keys(client, job["id"]) == [keys.tombstone(job["id"]).encode()]
    assert client.zcard(keys.OUTBOX) == client.zcard(keys.TRASH) == client.zcard(keys.EXPIRY) == 0
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("GET", "/events"),
        ("GET", "/deliveries"),
        ("GET", "/images/0"),
        ("GET", "/images/0/content"),
        ("GET", "/images/0/prior"),
    ):
        answer = http.open(url + path, method=method)
        assert (answer.status_code, answer.get_json()["code"]) == (410, "gone"), path
    assert http.get("/v1/jobs").get_json()["data"] == []


def test_a_delete_that_object_storage_refuses_is_carried_out_later(servers, submit, done, settings, client):
    """ai-dynamo/dynamo#12970: objects orphaned when a later call failed."""
    from api.application import build

    job = submit()
    done(job)
    away = build(servers.settings(s3_endpoint="http://127.0.0.1:1")).test_client()
    assert away.delete(f"/v1/jobs/{job['id']}").status_code == 204
    assert away.get(f"/v1/jobs/{job['id']}").status_code == 410
    assert len(_objects(settings, job["id"])) == 1
    client.zadd(keys.TRASH, {job["id"]: 1}, xx=True)
    upkeep = wiring.upkeep(settings, client)
    upkeep.step()
    assert _objects(settings, job["id"]) == []
    assert client.zcard(keys.TRASH) == 0


def test_an_ended_job_goes_when_its_time_is_over(http, submit, done, settings, client):
    kept, job, running = submit(), submit(ttl=60), submit(ttl=60)
    done(kept)
    done(job)
    found = http.get(f"/v1/jobs/{job['id']}").get_json()
    assert found["ttl"] == 60
    assert found["expires_at"] > found["completed_at"]
    upkeep = wiring.upkeep(settings, client)
    assert upkeep.step() == 0
    client.zadd(keys.EXPIRY, {job["id"]: 1})
    assert upkeep.step() == 1
    assert http.get(f"/v1/jobs/{job['id']}").status_code == 410
    assert _objects(settings, job["id"]) == []
    assert http.get(f"/v1/jobs/{kept['id']}").status_code == 200
    assert http.get(f"/v1/jobs/{running['id']}").get_json()["status"] == "queued"
    assert [each["id"] for each in http.get("/v1/jobs").get_json()["data"]] == [running["id"], kept["id"]]


def test_an_expired_job_keeps_its_record_until_its_events_are_delivered(http, submit, done, settings, client):
    job = submit(ttl=60, webhook_url="http://127.0.0.1:1/")
    done(job)
    client.zadd(keys.EXPIRY, {job["id"]: 1})
    upkeep: Upkeep = wiring.upkeep(settings, client)
    assert upkeep.step() == 0
    assert http.get(f"/v1/jobs/{job['id']}").status_code == 410
    assert client.exists(keys.job(job["id"]))
    outbox = wiring.outbox(settings, client)
    from app.store.outbox import Settlement

    for job_id, sequence in outbox.take(10, hold_ms=1000):
        outbox.settle(job_id, sequence, Settlement("delivered", took_ms=1), None)
    client.zadd(keys.EXPIRY, {job["id"]: 1})
    assert upkeep.step() == 1
    assert _own_keys(client, job["id"]) == [keys.tombstone(job["id"]).encode()]


def test_tombstones_go_too(http, submit, done, client, settings):
    job = submit()
    done(job)
    http.delete(f"/v1/jobs/{job['id']}")
    assert 0 < client.pttl(keys.tombstone(job["id"])) <= settings.tombstone_s * 1000


def test_files_of_a_submit_that_never_reached_its_record_are_removed(settings, client):
    retention, blobs = wiring.retention(settings, client), wiring.worker_blobs(settings)
    import hashlib

    retention.reserve("job_lost")
    blobs.put("jobs/job_lost/inputs/0.png", b"x", "image/png", hashlib.sha256(b"x").digest())
    client.zadd(keys.TRASH, {"job_lost": 1})
    wiring.upkeep(settings, client).step()
    assert _objects(settings, "job_lost") == []


# --- deadlines


def _expire_at_once(client, job_id):
    """The deadline passes: its time is moved, by hand, to the past."""
    client.hset(keys.job(job_id), "deadline_ms", 1)
    for member in client.zrange(keys.DUE, 0, -1):
        if member.startswith(job_id.encode()):
            client.zadd(keys.DUE, {member: 1})


def _sweep(store):
    for ref in store.due(100):
        store.sweep(ref)


def test_a_deadline_before_the_start_is_expired(http, submit, store, client):
    job = submit(headers={"Cancel-After": "5"}, n=2)
    assert client.zscore(keys.DUE, f"{job['id']}:0") <= int(client.hget(keys.job(job["id"]), "deadline_ms"))
    _expire_at_once(client, job["id"])
    assert store.claim_plan(ImageRef(job["id"], 0), entry="0-0", token="late") is None
    _sweep(store)
    found = http.get(f"/v1/jobs/{job['id']}").get_json()
    assert found["status"] == "expired"
    assert {image["error"]["code"] for image in found["images"]} == {"deadline_exceeded"}
    assert http.post(f"/v1/jobs/{job['id']}/cancel").status_code == 409
    assert client.xlen(keys.AR_REALTIME) == 0


def test_a_deadline_while_it_runs_cancels_what_is_not_finished(http, submit, store, settings, client):
    job = submit(headers={"Cancel-After": "5"}, n=3)
    finish(store, settings, job["id"], 0)
    lease = painting(store, job["id"], 1)
    planned(store, job["id"], 2)
    _expire_at_once(client, job["id"])
    _sweep(store)
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["status"] == "canceling"
    store.fail(lease, "deadline_exceeded", "seen by the worker")
    found = http.get(f"/v1/jobs/{job['id']}").get_json()
    assert found["status"] == "canceled"
    assert [image["status"] for image in found["images"]] == ["succeeded", "canceled", "canceled"]


def test_a_worker_that_dies_with_a_canceled_image_does_not_keep_it(http, submit, store):
    job = submit()
    painting(store, job["id"])
    http.post(f"/v1/jobs/{job['id']}/cancel")
    wait_until(lambda: (_sweep(store), store.get(job["id"]).done)[1], what="the end of the lease")
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["status"] == "canceled"
