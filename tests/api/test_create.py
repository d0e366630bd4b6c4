"""How a job is taken: idempotency keys, waits, deadlines, dry runs, and what they must not do."""

import io
import json
import threading
import time

import pytest
import requests

from api.headers import preferred_wait
from app import keys
from tests.api.orders import finish, painting
from tests.api.test_images import _png
from tests.servers import is_empty, wait_until

BODY = {"prompt": "a red circle on a blue background", "size": "256x256", "steps": 12}


def _keyed(http, key="k1", body=None, **headers):
    return http.post("/v1/jobs", json=body or BODY, headers={"Idempotency-Key": key} | headers)


# --- Idempotency-Key


def test_the_same_key_and_body_give_the_stored_answer(http, store, settings, client):
    """CherryHQ/cherry-studio#20033: a client's silent retries made and billed three images."""
    first = _keyed(http)
    again = _keyed(http, body=dict(reversed(BODY.items())))
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.data == first.data
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    finish(store, settings, first.get_json()["id"])
    assert _keyed(http).data == first.data, "stored, whatever the job has become"
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"


def test_a_repeat_that_waits_gets_the_job_as_it_is(http, store, settings):
    job = _keyed(http).get_json()
    finish(store, settings, job["id"])
    answer = _keyed(http, Prefer="wait=5")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "succeeded")


@pytest.mark.parametrize("other", [BODY | {"steps": 13}, BODY | {"n": 2}])
def test_the_same_key_with_another_body_is_422(http, client, other):
    assert _keyed(http).status_code == 202
    answer = _keyed(http, body=other)
    assert (answer.status_code, answer.get_json()["code"]) == (422, "idempotency_key_reused")
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"


def test_another_deadline_is_another_request(http):
    assert _keyed(http).status_code == 202
    assert _keyed(http, **{"Cancel-After": "30"}).status_code == 422


def test_refused_requests_leave_the_key_free(http):
    assert _keyed(http, body=BODY | {"n": 99}).status_code == 422
    assert _keyed(http, body=BODY | {"dry_run": True}).status_code == 200
    assert _keyed(http).status_code == 202


def test_a_repeat_is_answered_though_what_it_names_is_gone(http, submit, store, settings):
    source = submit()
    finish(store, settings, source["id"])
    body = {"reuse_prior": {"job": source["id"], "index": 0}}
    first = _keyed(http, body=body)
    assert first.status_code == 202
    assert http.delete(f"/v1/jobs/{source['id']}").status_code == 204
    assert _keyed(http, key="k2", body=body).status_code == 422
    again = _keyed(http, body=body)
    assert (again.status_code, again.data) == (202, first.data)


def test_a_key_lives_as_long_as_published(http, client):
    _keyed(http)
    (name,) = client.keys(keys.PREFIX + "idempotency:*")
    assert 86_000_000 < client.pttl(name) <= 86_400_000
    text = json.dumps(http.get("/openapi.json").get_json())
    assert "PLANPAINT_IDEMPOTENCY_S" in text


@pytest.mark.parametrize("key", ["x" * 256, "ü"])
def test_a_bad_key_names_its_header(http, key):
    answer = _keyed(http, key)
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/Idempotency-Key")


def test_files_belong_to_the_fingerprint(http, client, settings):
    def post(data):
        form = {"job": json.dumps({"prompt": "make it green"}), "image": (io.BytesIO(data), "a.png")}
        return http.post("/v1/jobs", data=form, headers={"Idempotency-Key": "f"})

    first = post(_png())
    assert post(_png()).get_json()["id"] == first.get_json()["id"]
    assert post(_png(colour="blue")).status_code == 422
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"


def test_200_concurrent_duplicates_make_one_job(live, client):
    """CherryHQ/cherry-studio#20033, all at once."""
    start = threading.Barrier(200)
    answers = []

    def send():
        start.wait()
        # A busy service may ask to come again, as it may any client.
        while (answer := _post(live, BODY, {"Idempotency-Key": "one"})).status_code == 503:
            time.sleep(0.2)
        answers.append((answer.status_code, answer.json()["id"]))

    threads = [threading.Thread(target=send) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 200
    assert len(set(answers)) == 1
    assert answers[0][0] == 202
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"
    assert client.zcard(keys.DUE) == 1


def _post(live, body, headers):
    return requests.post(f"{live.url}/v1/jobs", json=body, headers=headers, timeout=30)


def test_a_hundred_jobs_at_once_have_a_hundred_ids(http):
    """vllm-project/vllm-omni#1080, vllm-project/vllm-omni#2048: ids from the clock, two in a second, one hangs."""
    ids = {http.post("/v1/jobs", json=BODY).get_json()["id"] for _ in range(100)}
    assert len(ids) == 100
    assert all(http.get(f"/v1/jobs/{job_id}").status_code == 200 for job_id in ids)


# --- Prefer: wait


def test_a_wait_that_runs_out_is_202_with_the_real_status(http, client):
    """replicate/replicate-python#385, replicate/replicate-python#372: an empty list, as if all was done."""
    answer = http.post("/v1/jobs", json=BODY, headers={"Prefer": "wait=1"})
    job = answer.get_json()
    assert (answer.status_code, job["status"]) == (202, "queued")
    assert answer.headers["Preference-Applied"] == "wait=1"
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["Retry-After"]
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["status"] == "queued", "not canceled"


def test_a_wait_ends_with_the_job(http, store, settings, client):
    def work():
        wait_until(lambda: client.zcard(keys.DUE) == 1, what="the job")
        (ref,) = [member.decode() for member in client.zrange(keys.DUE, 0, -1)]
        finish(store, settings, ref.split(":")[0])

    worker = threading.Thread(target=work)
    worker.start()
    answer = http.post("/v1/jobs", json=BODY, headers={"Prefer": "respond-soon, wait=30"})
    worker.join()
    assert (answer.status_code, answer.get_json()["status"]) == (200, "succeeded")
    assert answer.get_json()["images"][0]["content_url"]


@pytest.mark.parametrize("prefer", ["respond-async", "wait=0", "wait=x", "wait", "handling=lenient", "wait=-1"])
def test_other_preferences_do_not_wait(http, prefer):
    answer = http.post("/v1/jobs", json=BODY, headers={"Prefer": prefer})
    assert answer.status_code == 202
    assert answer.headers.get("Preference-Applied") == ("respond-async" if prefer == "respond-async" else None)


@pytest.mark.parametrize(
    "prefer", ["respond-async, wait=9", "wait=9, respond-async", 'Wait="9"', "wait = 9;x=y, wait=3"]
)
def test_a_wait_is_one_in_whatever_company_and_writing(app, prefer):
    """RFC 7240: `respond-async, wait=9` is an answer within nine seconds, or 202."""
    with app.test_request_context(headers={"Prefer": prefer}):
        assert preferred_wait() == (9, "wait=9")


def test_a_job_that_was_taken_is_never_answered_as_if_it_was_not(live, client, store, settings):
    """CherryHQ/cherry-studio#20033: its caller would send it again. Here Redis falls silent behind the submit."""
    answers = {}

    def call(path, **headers):
        answers[path] = requests.post(f"{live.url}{path}", json={"prompt": "x"}, headers=headers, timeout=30)

    calls = [threading.Thread(target=call, args=["/v1/images/generations"])]
    calls.append(threading.Thread(target=call, args=["/v1/jobs"], kwargs={"Prefer": "wait=1"}))
    for number, each in enumerate(calls):
        each.start()
        wait_until(lambda number=number: client.zcard(keys.DUE) == number + 1, what="the job")
    # Longer than the API waits for an answer.
    client.client_pause(2500, all=True)
    calls[1].join()
    assert (answers["/v1/jobs"].status_code, answers["/v1/jobs"].json()["status"]) == (202, "queued")
    wait_until(lambda: requests.get(f"{live.url}/readyz", timeout=10).status_code == 200, what="Redis")
    for member in client.zrange(keys.DUE, 0, -1):
        finish(store, settings, member.decode().split(":")[0])
    calls[0].join()
    assert answers["/v1/images/generations"].status_code == 200


# --- Cancel-After


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("30s", 30), ("5m", 300), ("1h30m45s", 5445), ("604800", 604_800)]
)
def test_a_deadline_counts_from_the_creation(submit, client, text, seconds):
    job = submit(headers={"Cancel-After": text})
    created, deadline = (int(value) for value in client.hmget(keys.job(job["id"]), "created_at", "deadline_ms"))
    assert deadline - created == seconds * 1000
    assert job["deadline"]


@pytest.mark.parametrize("text", ["4", "0", "-1", "x", "", "5 m", "8d", "1m1h", "604801", "9" * 30, "٥٠"])
def test_a_bad_deadline_names_its_header(http, client, text):
    answer = http.post("/v1/jobs", json=BODY, headers={"Cancel-After": text.encode().decode("latin-1")})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/Cancel-After")
    assert is_empty(client)


# --- dry runs and refusals


def test_a_dry_run_prices_and_queues_nothing(http, client):
    answer = http.post("/v1/jobs", json=BODY | {"dry_run": True, "n": 3, "size": "512x512"})
    found = answer.get_json()
    assert answer.status_code == 200
    assert found["parameters"]["n"] == 3
    assert found["price"] == {"ar_tokens": 3 * (16 * 16 + 16 * 16), "dit_steps": 36, "pixels": 3 * 512 * 512}
    assert is_empty(client)
    assert http.post("/v1/jobs", json=BODY | {"dry_run": True, "n": 0}).status_code == 422


def test_a_dry_run_refuses_what_a_submit_would(http, submit, store, settings):
    source = submit()
    body = {"reuse_prior": {"job": source["id"], "index": 0}, "dry_run": True}
    answer = http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/reuse_prior")
    finish(store, settings, source["id"])
    assert http.post("/v1/jobs", json=body).status_code == 200
    answer = http.post("/v1/jobs", json=body | {"size": "512x256"})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/size")


def test_what_is_accepted_is_used_and_nothing_else_is_accepted(http, client):
    """fal-ai/fal-js#135: a webhook URL inside the model input was accepted and ignored."""
    answer = http.post("/v1/jobs", json=BODY | {"webhook": "https://example.org/"})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/webhook")
    answer = http.post("/v1/jobs", json=BODY | {"webhook_events": ["job.completed"]})
    assert answer.get_json()["errors"][0]["pointer"] == "/webhook_events"


@pytest.mark.parametrize(
    "text", ['"prompt": "a", "prompt": "b"', '"prompt": "a", "metadata": {"prompt": 1, "prompt": 2}']
)
def test_a_name_that_comes_twice_is_refused(http, client, text):
    answer = http.post("/v1/jobs", data=f"{{{text}}}", content_type="application/json")
    assert (answer.status_code, answer.get_json()["code"]) == (422, "invalid_input")
    assert '"prompt"' in answer.get_json()["detail"]
    assert is_empty(client)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/webhook-test", "/v1/images/generations", "/v1/images/edits"])
def test_what_belongs_into_the_body_is_not_ignored_in_the_query(http, client, path):
    """fal-ai/fal-js#135, the other way round: there webhooks are named in the query."""
    answer = http.post(f"{path}?webhook_url=https://example.org/", json={"prompt": "x"})
    refused = {"error": {"param": "webhook_url"}} if "images" in path else {"errors": [{"pointer": "/webhook_url"}]}
    assert answer.status_code == (400 if "images" in path else 422)
    assert _has(answer.get_json(), refused)
    assert is_empty(client)


def _has(found, part):
    if isinstance(part, list):
        return len(found) == len(part) and all(map(_has, found, part))
    return all(_has(found[name], part[name]) for name in part) if isinstance(part, dict) else found == part


@pytest.mark.parametrize("query", ["?status=queued&status=failed", "/job_{0:032}?wait=1&wait=2"])
def test_a_parameter_that_comes_twice_is_refused(http, client, query):
    answer = http.get("/v1/jobs" + query.format(0))
    assert (answer.status_code, "more than once" in answer.get_json()["detail"]) == (422, True)


def test_what_cannot_be_made_is_refused_before_it_waits(http, client):
    """Haidra-Org/AI-Horde#161 and sgl-project/sglang#19346: refused when asked, not after a wait or the work."""
    for field, value in (("size", "4096x4096"), ("steps", 1000), ("output_format", "bmp"), ("prompt", "x" * 5000)):
        answer = http.post("/v1/jobs", json=BODY | {field: value})
        assert answer.status_code == 422
    assert is_empty(client)


@pytest.mark.parametrize("n", [1, 2, 10])
def test_every_n_has_its_images(submit, n):
    """sgl-project/sglang#14595 (n=2 failed) and Haidra-Org/artbot#47 (images counted by job)."""
    job = submit(n=n)
    assert [image["index"] for image in job["images"]] == list(range(n))
    assert len({image["seed"] for image in job["images"]}) == n


@pytest.mark.parametrize("metadata", [{"a": "\ud800"}, {"\udfff": 1}, {"a": ["\udc00"]}])
def test_lone_surrogates_in_metadata_are_refused(http, metadata):
    answer = http.post("/v1/jobs", data=json.dumps(BODY | {"metadata": metadata}), content_type="application/json")
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/metadata")


def test_metadata_is_echoed_as_deep_as_it_is_taken(http, client):
    def nested(depth):
        """`depth` objects and lists in each other."""
        return {"a": json.loads("[" * (depth - 1) + '"é\u2028"' + "]" * (depth - 1))}

    answer = http.post("/v1/jobs", json=BODY | {"metadata": nested(100)})
    assert (answer.status_code, answer.get_json()["metadata"]) == (202, nested(100))
    assert http.get(answer.headers["Location"]).get_json()["metadata"] == nested(100)
    for depth in (101, 900):
        answer = http.post("/v1/jobs", json=BODY | {"metadata": nested(depth)})
        assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/metadata")


def test_a_job_says_where_it_stands_and_guesses_only_from_measurements(http, submit, store, settings, client):
    first = submit(n=2)
    second = submit()
    assert (first["queue_position"], second["queue_position"]) == (0, 2)
    assert second["estimate"] is None, "nothing has been measured"
    painting(store, first["id"], 0)
    assert http.get(f"/v1/jobs/{second['id']}").get_json()["queue_position"] == 1
    queue = http.get("/v1/queue").get_json()
    assert queue["dit_workers"] == 0
