"""API keys over HTTP: who may do what, whose things are whose, and how much is too much."""

import base64
import io
import re
import time

import openai
import pytest
import requests
from PIL import Image

from api.access import ADMIN_ENDPOINTS
from api.application import build
from api.gate import FRESH_S
from app import keys, wiring
from app.domain.access import LimitChanges, Scope
from app.domain.messages import ImageRef
from app.store.api_keys import ApiKeys
from tests.api.conftest import make_key, running
from tests.api.orders import finish, planned
from tests.servers import wait_until

JOB = {"prompt": "a red circle on a blue background", "size": "256x256", "steps": 12}
OPENAI = ("/v1/images/generations", "/v1/images/edits", "/v1/models")


@pytest.fixture(scope="module")
def keyed(servers):
    """An application that asks for keys, and one that has no other limits than its keys have."""
    return build(servers.settings(api_keys="required", lease_s=0.5, hint_s=0.2, key_requests=0, openai_wait_s=1))


@pytest.fixture
def registry(client):
    return ApiKeys(client)


class Holder:
    """A test client that sends a key with everything."""

    def __init__(self, app, registry, *scopes, **limits):
        key, self.secret = registry.create("test", scopes or list(Scope), LimitChanges(**limits))
        self.id = key.id
        self.http = app.test_client()

    def __getattr__(self, method):
        def call(path, headers=None, **rest):
            bearer = {"Authorization": f"Bearer {self.secret}"}
            return getattr(self.http, method)(path, headers=bearer | (headers or {}), **rest)

        return call

    def submit(self, headers=None, **fields):
        answer = self.post("/v1/jobs", json=JOB | fields, headers=headers)
        assert answer.status_code == 202, answer.text
        return answer.get_json()


@pytest.fixture
def alice(keyed, registry):
    return Holder(keyed, registry)


@pytest.fixture
def bob(keyed, registry):
    return Holder(keyed, registry)


def _routes(app):
    """(method, path with names filled in, endpoint) of everything under /v1."""
    found = []
    for rule in app.url_map.iter_rules():
        if rule.rule.startswith("/v1/"):
            path = re.sub(r"<(?:int:)?index>", "0", rule.rule)
            path = re.sub(r"<job_id>", "job_" + "0" * 32, path)
            path = re.sub(r"<delivery_id>", f"dlv_job_{'0' * 32}_1", path).replace("<model>", "glm-image")
            assert "<" not in path, f"{path}: say what stands for the name"
            found += [(method, path, rule.endpoint) for method in rule.methods - {"HEAD", "OPTIONS"}]
    assert len(found) > 15
    return found


# --- authentication and scopes


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"),
        ("", "missing_api_key"),
        ("Bearer", "missing_api_key"),
        ("Bearer  ", "missing_api_key"),
        ("Basic dXNlcjpwYXNz", "missing_api_key"),
        ("Bearer planpaint_wrong", "invalid_api_key"),
        ("Bearer \xe9\xff", "invalid_api_key"),
        ("Bearer " + "x" * 5000, "invalid_api_key"),
    ],
)
def test_no_route_answers_without_a_good_key(keyed, alice, header, code):
    http = keyed.test_client()
    for method, path, _ in [*_routes(keyed), ("GET", "/v1/nope", "")]:
        answer = http.open(path, method=method, headers={"Authorization": header} if header is not None else {})
        assert answer.status_code == 401, (method, path)
        assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="planpaint"')
        body = answer.get_json()
        if path.startswith(OPENAI):
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["x-should-retry"] == "false"
        else:
            assert answer.content_type == "application/problem+json"
        assert (body.get("error") or body)["code"] == code
    assert http.get("/healthz").status_code == 200
    assert http.get("/openapi.json").status_code == 200


def test_each_route_needs_its_scope(keyed, registry):
    holders = {scope: Holder(keyed, registry, scope) for scope in Scope}
    for method, path, endpoint in _routes(keyed):
        reading = Scope.JOBS_READ if method == "GET" else Scope.JOBS_WRITE
        needed = Scope.ADMIN if endpoint in ADMIN_ENDPOINTS else reading
        for scope, holder in holders.items():
            answer = getattr(holder, method.lower())(path)
            if scope is needed:
                assert answer.status_code not in (401, 403), (method, path, scope)
                continue
            assert answer.status_code == 403, (method, path, scope)
            assert f'scope="{needed.value}"' in answer.headers["WWW-Authenticate"]
            body = answer.get_json()
            assert (body.get("error") or body)["code"] == "insufficient_scope"


def test_every_operation_is_described_with_its_refusals(keyed):
    spec = keyed.test_client().get("/openapi.json").get_json()
    assert spec["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            if path.startswith("/v1/"):
                assert operation["security"] == [{"key": []}], (method, path)
                assert {"401", "403", "429", "503"} <= set(operation["responses"]), (method, path)
                assert "Retry-After" in operation["responses"]["429"]["headers"]
                (kind,) = operation["responses"]["401"]["content"]
                assert kind == ("application/json" if path.startswith(OPENAI) else "application/problem+json")
            else:
                assert "security" not in operation
                assert "401" not in operation["responses"]


def test_admin_endpoints_exist(keyed):
    assert {rule.endpoint for rule in keyed.url_map.iter_rules()} >= ADMIN_ENDPOINTS


def test_a_revoked_key_is_refused_within_seconds(keyed, alice, registry, client):
    assert alice.get("/v1/jobs").status_code == 200
    registry.revoke(alice.id)
    started = time.monotonic()
    wait_until(lambda: alice.get("/v1/jobs").status_code == 401, what="the refusal")
    # Twice what is promised, for a loaded machine.
    assert time.monotonic() - started < 2 * FRESH_S
    assert alice.get("/v1/jobs").get_json()["code"] == "invalid_api_key"


def test_a_key_is_not_asked_for_at_every_request(keyed, alice, client):
    alice.get("/v1/jobs")
    client.config_resetstat()
    for _ in range(20):
        assert alice.get("/v1/models").status_code == 200
    calls = sum(stat["calls"] for name, stat in client.info("commandstats").items() if name == "cmdstat_hgetall")
    assert calls <= 2, "at most one read in two seconds"


def test_keys_are_asked_for_from_the_first_one_on_and_for_ever(servers, client, registry):
    http = build(servers.settings()).test_client()
    assert http.get("/v1/jobs").status_code == 200
    assert http.get("/v1/jobs", headers={"Authorization": "Bearer none"}).status_code == 200
    key, _ = registry.create("x", list(Scope), LimitChanges())
    wait_until(lambda: http.get("/v1/jobs").status_code == 401, what="the service asks")
    registry.revoke(key.id)
    time.sleep(FRESH_S)
    assert http.get("/v1/jobs").status_code == 401, "revoking the last key opens no door"
    open_to_all = build(servers.settings(api_keys="off", api_host="0.0.0.0")).test_client()
    assert open_to_all.get("/v1/jobs").status_code == 200
    public = build(servers.settings(api_host="0.0.0.0")).test_client()
    client.flushall()
    assert public.get("/v1/jobs").status_code == 401, "also when Redis has lost the keys"


def test_redis_away_is_503_and_not_401(servers):
    http = build(servers.settings(api_keys="required", redis_url="redis://127.0.0.1:1/0")).test_client()
    answer = http.get("/v1/jobs", headers={"Authorization": "Bearer planpaint_x"})
    assert (answer.status_code, answer.get_json()["code"]) == (503, "unavailable")


# --- owners


def test_another_keys_things_are_not_there(keyed, alice, bob, store, settings, client):
    """Every route that names a job or a delivery, so also one that is added later."""
    done = alice.submit(webhook_url="https://example.org/hook", n=2)["id"]
    for index in range(2):
        finish(store, settings, done, index)
    waits = alice.submit()["id"]
    gone = alice.submit()["id"]
    assert alice.post(f"/v1/jobs/{gone}/cancel").status_code == 200
    assert alice.delete(f"/v1/jobs/{gone}").status_code == 204
    before = {key: client.dump(key) for key in client.scan_iter() if b"job_" in key}
    tried = 0
    for job_id in (done, waits, gone):
        for method, path, _ in _routes(keyed):
            path = path.replace("job_" + "0" * 32, job_id)
            if job_id not in path:
                continue
            answer = getattr(bob, method.lower())(path)
            assert answer.status_code == 404, (method, path, answer.text)
            assert answer.get_json()["code"] == "not_found"
            nobody = getattr(bob, method.lower())(path.replace(job_id, "job_" + "1" * 32))
            told, other = answer.get_json(), nobody.get_json()
            assert told["detail"].replace(job_id, "") == other["detail"].replace("job_" + "1" * 32, ""), path
            tried += 1
    assert tried >= 3 * 10
    assert {key: client.dump(key) for key in client.scan_iter() if b"job_" in key} == before
    assert alice.get(f"/v1/jobs/{done}").get_json()["status"] == "succeeded"
    assert alice.get(f"/v1/jobs/{gone}").status_code == 410
    assert alice.get(f"/v1/deliveries/dlv_{done}_1").status_code == 200


def test_lists_hold_the_keys_own_jobs(alice, bob):
    mine = {alice.submit()["id"] for _ in range(3)}
    theirs = bob.submit()["id"]
    assert {job["id"] for job in alice.get("/v1/jobs").get_json()["data"]} == mine
    cursor = alice.get("/v1/jobs?limit=1").get_json()["next_cursor"]
    assert [job["id"] for job in bob.get("/v1/jobs").get_json()["data"]] == [theirs]
    assert bob.get(f"/v1/jobs?cursor={cursor}").get_json()["data"] in ([], [bob.get(f"/v1/jobs/{theirs}").get_json()])


def test_idempotency_keys_are_each_keys_own(alice, bob):
    header = {"Idempotency-Key": "k"}
    first = alice.submit(header, seed=1)
    other = bob.submit(header, seed=2)
    assert first["id"] != other["id"]
    assert alice.submit(header, seed=1) == first
    assert bob.post("/v1/jobs", json=JOB | {"seed": 1}, headers=header).get_json()["code"] == "idempotency_key_reused"


def test_another_keys_plan_is_not_reused(alice, bob, store):
    job_id = alice.submit()["id"]
    planned(store, job_id)
    for name in (job_id, "job_" + "1" * 32):
        answer = bob.post("/v1/jobs", json={"reuse_prior": {"job": name, "index": 0}})
        assert answer.status_code == 422
        assert answer.get_json()["detail"] == f"reuse_prior: no job {name}"
    assert alice.post("/v1/jobs", json={"reuse_prior": {"job": job_id, "index": 0}}).status_code == 202


def test_test_events_are_their_keys_own(alice, bob):
    answer = alice.post("/v1/webhook-test", json={"url": "https://example.org/"})
    path = answer.headers["Location"]
    assert alice.get(path).status_code == 200
    assert bob.get(path).status_code == 404
    assert bob.post(f"{path}/redeliver").status_code == 404


def test_a_job_without_a_key_is_not_a_keys(alice, servers, client):
    without = build(servers.settings(api_keys="off")).test_client()
    job_id = without.post("/v1/jobs", json=JOB).get_json()["id"]
    mine = alice.submit()["id"]
    assert alice.get(f"/v1/jobs/{job_id}").status_code == 404
    assert without.get(f"/v1/jobs/{mine}").status_code == 404


# --- limits


def _items(header):
    """`"a";r=1;t=2, "b";q=3` as {"a": {"r": 1, "t": 2}, "b": {"q": 3}}."""
    found = {}
    for item in header.split(", "):
        name, *rest = item.split(";")
        pairs = (pair.partition("=") for pair in rest)
        found[name.strip('"')] = {key: value.strip('"') if key == "qu" else int(value) for key, _, value in pairs}
    return found


def test_too_many_requests_are_429_and_every_answer_tells_what_is_left(keyed, registry):
    holder = Holder(keyed, registry, requests=4)
    for remaining in (3, 2, 1, 0):
        answer = holder.get("/v1/jobs")
        assert answer.status_code == 200
        assert _items(answer.headers["RateLimit"])["requests"]["r"] == remaining
        assert _items(answer.headers["RateLimit-Policy"])["requests"] == {"q": 4, "w": 60}
    answer = holder.get("/v1/jobs")
    assert answer.status_code == 429
    body = answer.get_json()
    assert body["code"] == "quota_exceeded"
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    told = _items(answer.headers["RateLimit"])["requests"]
    assert told["r"] == 0
    assert told["t"] <= int(answer.headers["Retry-After"]) <= 120, "Retry-After is not earlier than t"
    assert "RateLimit" not in holder.get("/healthz").headers
    assert Holder(keyed, registry, requests=4).get("/v1/jobs").status_code == 200


def test_refused_requests_use_up_nothing(keyed, registry):
    holder = Holder(keyed, registry, Scope.JOBS_READ, requests=2)
    for _ in range(5):
        assert holder.post("/v1/jobs", json=JOB).status_code == 403
    assert holder.get("/v1/jobs").status_code == 200


def test_too_many_images_at_a_time_are_429_until_some_end(keyed, registry, store):
    holder = Holder(keyed, registry, images=3)
    job = holder.submit(n=2)
    answer = holder.post("/v1/jobs", json=JOB | {"n": 2})
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 120
    assert _items(answer.headers["RateLimit"])["images"]["r"] == 1
    assert _items(answer.headers["RateLimit-Policy"])["images"] == {"q": 3, "qu": "images"}
    answer = holder.post("/v1/jobs", json=JOB)
    assert answer.status_code == 202
    assert _items(answer.headers["RateLimit"])["images"]["r"] == 0
    holder.post(f"/v1/jobs/{job['id']}/cancel")
    assert holder.post("/v1/jobs", json=JOB | {"n": 2}).status_code == 202
    answer = holder.post("/v1/jobs", json=JOB | {"n": 4})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/n"), "waiting would not help"


def test_pixels_are_the_price(keyed, registry):
    holder = Holder(keyed, registry, pixels=4 * 256 * 256)
    assert holder.post("/v1/jobs", json=JOB | {"n": 3, "dry_run": True}).status_code == 200
    answer = holder.post("/v1/jobs", json=JOB | {"n": 3})
    assert answer.status_code == 202
    told = _items(answer.headers["RateLimit"])["pixels"]
    assert 0 < told["t"] <= 45
    assert 256 * 256 <= told["r"] < 1.5 * 256 * 256
    answer = holder.post("/v1/jobs", json=JOB | {"n": 2})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 15
    assert holder.post("/v1/jobs", json=JOB | {"size": "128x128"}).status_code == 202
    answer = holder.post("/v1/jobs", json=JOB | {"n": 2, "size": "512x512"})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/size")


def test_a_full_queue_is_503_for_everybody_and_keeps_no_files(servers, registry, settings, client):
    app = build(servers.settings(api_keys="required", max_queued=2, key_requests=0))
    holder, other = Holder(app, registry), Holder(app, registry)
    holder.submit(n=2)
    answer = other.post("/v1/jobs", json=JOB)
    assert answer.status_code == 503
    assert answer.get_json()["code"] == "queue_full"
    assert answer.get_json()["type"].endswith("#temporary-reduced-capacity")
    assert 1 <= int(answer.headers["Retry-After"]) <= 120
    blobs = wiring.worker_blobs(settings)
    before, picture = _objects(blobs), io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(picture, "PNG")
    images = [base64.b64encode(picture.getvalue()).decode()]
    assert other.post("/v1/jobs", json=JOB | {"images": images}).status_code == 503
    assert _objects(blobs) == before
    assert client.zcard(keys.TRASH) == 0


def _objects(blobs):
    return {item["Key"] for item in blobs._client.list_objects_v2(Bucket=blobs._bucket).get("Contents", ())}


def test_refused_idempotent_requests_leave_their_key_free(keyed, registry):
    holder = Holder(keyed, registry, images=1)
    job = holder.submit()
    header = {"Idempotency-Key": "k"}
    assert holder.post("/v1/jobs", json=JOB, headers=header).status_code == 429
    holder.post(f"/v1/jobs/{job['id']}/cancel")
    first = holder.submit(header)
    assert holder.submit(header) == first, "a repeat is not refused although the key is at its limit"


def test_the_queue_position_of_a_light_key_is_not_that_of_the_queue(keyed, registry, alice, bob):
    for _ in range(4):
        alice.submit(n=10)
    job = bob.submit(n=10)
    assert job["queue_position"] <= 2
    assert alice.submit()["queue_position"] == 50
    again = bob.get(f"/v1/jobs/{job['id']}").get_json()
    assert again["queue_position"] < 10, "another key's forty are not all before it"


# --- a running process


@pytest.fixture(scope="module")
def guarded(servers, tmp_path_factory):
    make_key(servers)
    with running(
        servers,
        tmp_path_factory.mktemp("guarded"),
        api_keys="required",
        sse_heartbeat_s="0.5",
        default_size="256x256",
        openai_wait_s="1",
    ) as found:
        yield found


def _bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def test_openais_client_sees_its_own_errors(guarded, registry):
    def ask(secret):
        return openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=secret, timeout=30, max_retries=0)

    with ask("planpaint_wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.images.generate(prompt="x")
    assert caught.value.code == "invalid_api_key"
    _, reader = registry.create("reader", [Scope.JOBS_READ], LimitChanges())
    with ask(reader) as client:
        assert [model.id for model in client.models.list()] == ["glm-image"]
        with pytest.raises(openai.PermissionDeniedError) as caught:
            client.images.generate(prompt="x")
    assert caught.value.code == "insufficient_scope"
    key, writer = registry.create("writer", [Scope.JOBS_WRITE], LimitChanges(images=1))
    body = JOB | {"n": 1}
    assert requests.post(f"{guarded.url}/v1/jobs", json=body, headers=_bearer(writer), timeout=5).status_code == 202
    with ask(writer) as client, pytest.raises(openai.RateLimitError) as caught:
        client.images.generate(prompt="x")
    assert caught.value.code == "quota_exceeded"
    assert 1 <= int(caught.value.response.headers["Retry-After"]) <= 120
    assert key.id not in caught.value.message


def test_a_stream_ends_soon_after_its_key_is_revoked(guarded, registry, store):
    key, secret = registry.create("x", list(Scope), LimitChanges())
    job = requests.post(f"{guarded.url}/v1/jobs", json=JOB, headers=_bearer(secret), timeout=5).json()
    url = f"{guarded.url}/v1/jobs/{job['id']}/events"
    with requests.get(url, headers=_bearer(secret), stream=True, timeout=20) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(b"retry")
        registry.revoke(key.id)
        assert all(not line or line.startswith(b":") for line in lines), "it ends, and tells nothing meanwhile"
    assert store.get(job["id"]).images[0].state == "queued", "what was queued goes on"


def test_no_key_is_logged(guarded, registry):
    _, secret = registry.create("x", list(Scope), LimitChanges())
    for key in (secret, "planpaint_find-this-key"):
        requests.get(f"{guarded.url}/v1/jobs", headers=_bearer(key), timeout=5)
    text = guarded.log.read_text()
    assert '"status":401' in text
    assert secret not in text
    assert "find-this-key" not in text


def test_position_and_estimate_of_what_is_held_back_count_down(alice, bob, store):
    first = alice.submit(n=10)["id"]
    last = alice.submit()["id"]
    position = alice.get(f"/v1/jobs/{last}").get_json()["queue_position"]
    assert position == 10
    store.cancel(ImageRef(first, 0))
    assert alice.get(f"/v1/jobs/{last}").get_json()["queue_position"] == 9
