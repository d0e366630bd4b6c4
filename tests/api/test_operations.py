import socket
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.application import build
from app.errors import BrokenCheckpoint
from app.store.workers import WorkerInfo, WorkerRegistry


def test_health_asks_nobody_and_readiness_asks_everybody(http, servers, client):
    assert http.get("/healthz").status_code == 200
    assert http.get("/readyz").status_code == 200
    for broken in ({"redis_url": "redis://127.0.0.1:1/0"}, {"s3_endpoint": "http://127.0.0.1:1"}):
        other = build(servers.settings(**broken)).test_client()
        assert other.get("/healthz").status_code == 200
        answer = other.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]


def test_redis_down_or_hung_is_503_within_3_seconds(servers, client):
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        for port in (1, hung.getsockname()[1]):
            http = build(servers.settings(redis_url=f"redis://127.0.0.1:{port}/0")).test_client()
            for call in (
                lambda http=http: http.post("/v1/jobs", json={"prompt": "x", "size": "32x32"}),
                lambda http=http: http.get("/v1/jobs/job_" + "0" * 32),
                lambda http=http: http.get("/v1/workers"),
                lambda http=http: http.get("/metrics"),
            ):
                started = time.monotonic()
                answer = call()
                # The bound that callers are promised, not a speed.
                assert time.monotonic() - started < 3.0
                assert answer.status_code == 503
                assert answer.headers["Retry-After"]
                assert answer.get_json()["code"] == "unavailable"


def test_workers_are_listed_with_the_age_of_their_heartbeat(http, client):
    registry = WorkerRegistry(client)
    registry.beat(WorkerInfo("ar-1", "ar", 123, "host", "cpu", "busy", instance="ar@host"))
    registry.beat(WorkerInfo("dit-1", "dit", 124, "host", "cpu", "ready"))
    registry.leave("dit-1")
    (worker,) = http.get("/v1/workers").get_json()["data"]
    assert 0 <= worker.pop("heartbeat_age_s") < 60
    place = {"role": "ar", "instance": "ar@host", "pid": 123, "host": "host", "device": "cpu"}
    assert worker == {"name": "ar-1", "state": "busy"} | place


def test_a_worker_that_is_silent_for_long_is_forgotten(http, client):
    WorkerRegistry(client).beat(WorkerInfo("ar-1", "ar", 123, "host", "cpu", "busy"))
    client.zadd("planpaint:workers", {"ar-1": 1})
    assert http.get("/v1/workers").get_json() == {"data": []}


def test_metrics_parse_and_count(http):
    http.post("/v1/jobs", json={"prompt": "x", "size": "32x32", "n": 4})
    families = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").get_data(as_text=True))}
    assert families["planpaint_images_accepted"].samples[0].value == 4
    assert families["planpaint_images_active"].samples[0].value == 4
    assert families["planpaint_ar_hints"].samples[0].value == 4


def test_the_api_describes_itself(http):
    spec = http.get("/openapi.json").get_json()
    assert set(spec["paths"]) >= {"/v1/jobs", "/v1/jobs/{job_id}", "/v1/workers", "/healthz", "/readyz", "/metrics"}
    assert {"202", "400", "413", "415", "422", "503"} <= set(spec["paths"]["/v1/jobs"]["post"]["responses"])
    page = http.get("/docs", follow_redirects=True)
    assert page.status_code == 200
    assert b"openapi.json" in page.data


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("PUT", "/v1/jobs", 405)])
def test_every_error_is_a_problem(http, method, path, status):
    answer = http.open(path, method=method)
    assert answer.status_code == status
    assert answer.content_type == "application/problem+json"


def test_the_api_does_not_start_without_the_tokenizer(servers, tmp_path):
    with pytest.raises(BrokenCheckpoint, match=r"tokenizer\.json is missing"):
        build(servers.settings(checkpoint=str(tmp_path)))


def test_the_api_never_loads_torch():
    import subprocess
    import sys

    code = "import sys, api.application; sys.exit(bool({'torch', 'transformers', 'diffusers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
