"""The whole service with every lock on (see secured.py), and what operators do to it while it runs."""

import base64
import hashlib
import io
import json
import pickle
import time

import pytest
import requests
from kombu import pools
from PIL import Image
from standardwebhooks import Webhook
from werkzeug import Request, Response

from app import keys, wiring
from app.blobs import BlobStore
from app.domain.messages import DitTask
from app.errors import ImageFailed, Unavailable
from app.launcher.child import EX_CONFIG
from app.queues.dit_queue import DitQueue, make_celery
from tests.operators.secured import Authority, Secured
from tests.servers import wait_until

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Secured(tmp_path_factory.mktemp("secured")) as running:
        yield running


#: Logs of what is not ours.
SERVERS = ("weed.log", "valkey.log", "tls.log")
#: Where a message says that it came from.
PLACE = {"exchange": "", "routing_key": "dit"}


def _png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    return file.getvalue()


def test_the_service_works_whole_and_nothing_that_it_needs_is_denied(service, httpserver):
    told = []

    def receive(request: Request) -> Response:
        Webhook(service.webhook_secret).verify(request.get_data(as_text=True), dict(request.headers))
        told.append(request.get_json()["type"])
        return Response(status=204)

    httpserver.expect_request("/hook").respond_with_handler(receive)
    text = service.submit(n=2, webhook_url=httpserver.url_for("/hook"))
    edit = service.call(
        "POST",
        "/v1/jobs",
        data={"job": json.dumps({"prompt": "make it blue", "size": "64x64", "steps": 2})},
        files=[("image", ("a.png", _png(), "image/png"))],
    ).json()["id"]
    jobs = service.wait_done(text, edit)
    assert [job["status"] for job in jobs] == ["succeeded"] * 2, jobs
    answer = service.call("POST", "/v1/jobs", json={"reuse_prior": {"job": edit, "index": 0}, "steps": 2})
    again = answer.json()["id"]
    canceled = service.submit(n=4, steps=100)
    service.call("POST", f"/v1/jobs/{canceled}/cancel")
    service.wait_done(again, canceled)
    location = service.call("GET", f"/v1/jobs/{text}/images/0/content", allow_redirects=False).headers["Location"]
    assert location.startswith(service.s3_url)
    picture = requests.get(location, verify=str(service.authority.ca), timeout=10)
    assert Image.open(io.BytesIO(picture.content)).size == (64, 64)
    wait_until(lambda: len(told) >= 4, timeout=90, what="the webhooks")
    assert told[-1] == "job.completed"
    assert service.call("DELETE", f"/v1/jobs/{canceled}").status_code == 204
    for path in ("/v1/queue", "/v1/workers", f"/v1/jobs/{text}/deliveries", "/v1/jobs", "/metrics", "/readyz"):
        assert service.call("GET", path).status_code == 200, path
    assert service.admin.execute_command("ACL", "LOG") == []


def test_check_says_nothing_of_a_service_under_load(service):
    ids = [service.submit(n=3, steps=4) for _ in range(3)]
    while_busy = service.planpaint("check", "--objects", "all", "--json")
    jobs = service.wait_done(*ids)
    assert while_busy.returncode == 0, while_busy.stdout + while_busy.stderr
    assert json.loads(while_busy.stdout)["checked"]["jobs"] >= 3
    assert {job["status"] for job in jobs} == {"succeeded"}
    assert json.loads(service.planpaint("jobs", "--stuck", "--json").stdout)["data"] == []


def test_a_pickle_and_other_junk_are_buried_and_the_worker_lives(service):
    (before,) = service.workers("dit")
    DitQueue(make_celery(service.settings("ar"))).publish(DitTask("job_" + "0" * 32, 0))
    wait_until(lambda: not service.admin.llen(keys.DIT_LIST), what="the hint is taken")
    proof = service.folder / "pickled"
    message = {
        "body": base64.b64encode(pickle.dumps(_Bomb(str(proof)))).decode(),
        "content-type": "application/x-python-serialize",
        "content-encoding": "binary",
        "headers": {"task": "planpaint.paint", "id": "x", "lang": "py"},
        "properties": {"delivery_tag": "x", "delivery_info": PLACE, "body_encoding": "base64"},
    }
    hint = message | {"content-type": "application/json", "body": base64.b64encode(b"7").decode()}
    nowhere = hint | {"properties": message["properties"] | {"delivery_info": {}}}
    args = base64.b64encode(json.dumps([[], {"job_id": "x"}, {}]).encode()).decode()
    junk = [
        json.dumps(message),
        json.dumps(hint),
        json.dumps(hint | {"body": args}),
        json.dumps(nowhere),
        "junk",
        "[1]",
        b"\xff\xfe",
    ]
    service.admin.lpush(keys.DIT_LIST, *junk)
    service.admin.xadd(keys.AR_REALTIME, {"job": "junk"})

    def letters() -> list[dict]:
        found = json.loads(service.planpaint("dead", "list", "--json").stdout)["data"]
        return [letter for letter in found if letter["code"] == "unreadable"]

    wait_until(lambda: len(letters()) == len(junk) + 1, timeout=90, what="the dead letters")
    assert sorted({letter["stage"] for letter in letters()}) == ["ar", "dit"]
    assert not proof.exists()
    assert [job["status"] for job in service.wait_done(service.submit())] == ["succeeded"]
    (after,) = service.workers("dit")
    assert after["pid"] == before["pid"]


class _Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self):
        return open, (self._path, "w")


def test_a_drained_worker_finishes_ends_with_0_and_stays_idle_until_it_may_work(service):
    job = service.submit(steps=40, size="256x256")
    wait_until(lambda: _busy(service, "dit"), timeout=90, what="painting")
    old = service.current("dit")
    done = service.planpaint("drain", old.name, "--wait", "150")
    assert done.returncode == 0, done.stderr
    old.finish(time.monotonic() + 120)
    assert old._process.returncode == 0
    (ended,) = service.wait_done(job)
    assert (ended["status"], ended["images"][0]["attempts"]["dit"]) == ("succeeded", 1)
    service.start("dit", old.name)
    wait_until(lambda: [each["state"] for each in service.workers("dit")] == ["drained"], timeout=170, what="waiting")
    waiting = service.submit()
    wait_until(
        lambda: service.call("GET", f"/v1/jobs/{waiting}").json()["images"][0]["stage"] == "dit",
        timeout=90,
        what="a plan",
    )
    assert service.planpaint("drain", old.name, "--undo").returncode == 0
    assert [job["status"] for job in service.wait_done(waiting)] == ["succeeded"]


def test_workers_are_replaced_one_beside_the_other_and_nothing_is_lost(service):
    """A rolling deploy: the new one is ready, the old one gets TERM in the midst of its work."""
    ids = [service.submit(n=4, steps=8, size="128x128") for _ in range(3)]
    for role in ("ar", "dit"):
        old = service.current(role)
        new = service.start(role, f"{old.name}-new")
        wait_until(lambda role=role, new=new: _ready(service, role, new.name), timeout=170, what=f"the new {role}")
        old.terminate()
        old.finish(time.monotonic() + 120)
        assert old._process.returncode == 0
    jobs = service.wait_done(*ids)
    assert {job["status"] for job in jobs} == {"succeeded"}
    assert all(image["attempts"] == {"ar": 1, "dit": 1} for job in jobs for image in job["images"])


def _busy(service: Secured, role: str) -> bool:
    return any(each["state"] == "busy" for each in service.workers(role))


def _ready(service: Secured, role: str, instance: str) -> bool:
    return any(each["instance"] == instance and each["state"] in ("ready", "busy") for each in service.workers(role))


# --- S3


@pytest.mark.parametrize("role", ["ar", "dit", "sweeper", "operator", "api"])
def test_an_identity_may_do_what_its_role_does(service, role):
    blobs = wiring.worker_blobs(service.settings(role))
    admin = wiring.worker_blobs(service.settings("operator", s3="admin"))
    admin.put("jobs/job_x/inputs/0.png", b"in", "image/png", _digest(b"in"))
    admin.put("jobs/job_x/0/1.png", b"out", "image/png", _digest(b"out"))
    may = {
        "list": lambda: blobs.delete_under("jobs/none/"),
        "read inputs": lambda: blobs.get("jobs/job_x/inputs/0.png"),
        "read pictures": lambda: blobs.get("jobs/job_x/0/1.png"),
        "write inputs": lambda: blobs.put("jobs/job_x/inputs/1.png", b"x", "image/png", _digest(b"x")),
        "write pictures": lambda: blobs.put("jobs/job_x/0/2.png", b"x", "image/png", _digest(b"x")),
        "write elsewhere": lambda: blobs.put("other/0.png", b"x", "image/png", _digest(b"x")),
        "delete": lambda: blobs.delete("jobs/job_x/0/2.png"),
    }
    wanted = {
        "ar": {"read inputs"},
        "dit": {"read inputs", "write inputs", "write pictures"},
        "sweeper": {"list", "delete"},
        "operator": {"list", "read inputs", "read pictures", "write inputs"},
        "api": {"list", "read inputs", "read pictures", "write inputs", "delete"},
    }
    assert {name for name, call in may.items() if _allowed(call)} == wanted[role]


def _allowed(call) -> bool:
    try:
        call()
    except (Unavailable, ImageFailed) as error:
        if "denied" not in str(error).lower():
            raise
        return False
    return True


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# --- TLS


def test_servers_of_another_ca_are_refused_with_the_name_of_the_setting(service, tmp_path):
    other = str(Authority(tmp_path / "other").ca)
    wrong = service.planpaint("jobs", PLANPAINT_REDIS_CA=other)
    assert wrong.returncode == EX_CONFIG
    assert "its certificate is not trusted, see PLANPAINT_REDIS_CA" in wrong.stderr
    settings = service.settings("api").model_copy(update={"s3_ca": other})
    with pytest.raises(Unavailable, match="its certificate is not trusted, see PLANPAINT_S3_CA"):
        BlobStore(settings, timeout_s=5).ping()
    # kombu keeps connections by their URL alone, and a test above has opened one with the right CA.
    pools.reset()
    broker = service.settings("ar").model_copy(update={"redis_ca": other})
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        DitQueue(make_celery(broker)).publish(DitTask("job_1", 0))
    without = {"PLANPAINT_REDIS_CERT": "", "PLANPAINT_REDIS_KEY": ""}
    assert "no Redis answers" in service.planpaint("jobs", **without).stderr, "this server asks for a certificate"
    plain = service.environment("operator")["PLANPAINT_S3_ENDPOINT"].replace("https", "http")
    with pytest.raises(Unavailable):
        BlobStore(service.settings("api").model_copy(update={"s3_endpoint": plain}), timeout_s=5).ping()


# --- secrets


def test_no_secret_is_in_anything_that_is_written_or_answered(service):
    """All logs, what commands print and what the API tells; the logs hold what the tests above did, too."""
    prompt = "a red circle on a blue background"
    service.wait_done(service.submit(prompt=prompt))
    service.call("GET", "/v1/jobs", headers={"Authorization": f"Bearer {service.api_key}x"})
    logs = {
        path.name: path.read_text("utf-8", "replace") for path in service.logs.iterdir() if path.name not in SERVERS
    }
    assert {"api.log", "ar.log", "dit.log", "courier.log", "sweeper.log"} <= set(logs)
    outputs = dict(logs)
    wrong = service.environment("ar")["PLANPAINT_REDIS_URL"].replace("planpaint-ar:", "planpaint-ar:x")
    runs = {"refused": service.planpaint("jobs", PLANPAINT_REDIS_URL=wrong)}
    for command in ("config show", "config show --json", "dead list", "jobs", "keys list", "doctor --json"):
        runs[command] = service.planpaint(*command.split())
    assert '"redis"' in runs["doctor --json"].stdout
    outputs |= {name: done.stdout + done.stderr for name, done in runs.items()}
    for path in ("/metrics", "/readyz", "/openapi.json", "/v1/queue", "/v1/workers"):
        outputs[path] = service.call("GET", path).text
    assert [(name, secret) for name, text in outputs.items() for secret in service.secrets if secret in text] == []
    assert [name for name, text in logs.items() if prompt in text] == []
