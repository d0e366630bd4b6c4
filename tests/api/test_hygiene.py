"""Headers, request ids, CORS, logs and what comes before Flask, on a running process."""

import json
import socket

import pytest
import requests

from api.application import build
from tests.api.orders import finish


def _raw(live, data):
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while more := connection.recv(65536):
            found += more
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), body


@pytest.mark.parametrize("path", ["/healthz", "/nope", "/v1/jobs?limit=0", "/openapi.json"])
def test_every_answer_has_its_headers(http, path):
    found = http.get(path).headers
    assert found["X-Content-Type-Options"] == "nosniff"
    assert found["X-Frame-Options"] == "DENY"
    assert "default-src 'none'" in found["Content-Security-Policy"]
    assert found["X-Request-ID"].startswith("req_")
    assert "Access-Control-Allow-Origin" not in found


def test_a_good_request_id_is_kept_and_another_replaced(http):
    assert http.get("/healthz", headers={"X-Request-ID": "abc-1.2_3"}).headers["X-Request-ID"] == "abc-1.2_3"
    for bad in ("a b", "x" * 129, "<script>"):
        assert http.get("/healthz", headers={"X-Request-ID": bad}).headers["X-Request-ID"].startswith("req_")


def test_only_the_operators_origins_may_call(live, http):
    preflight = {"Origin": "https://studio.example", "Access-Control-Request-Method": "POST"}
    answer = requests.options(f"{live.url}/v1/jobs", headers=preflight, timeout=5)
    assert answer.status_code == 204
    assert answer.headers["Access-Control-Allow-Origin"] == "https://studio.example"
    assert "Idempotency-Key" in answer.headers["Access-Control-Allow-Headers"]
    answer = requests.get(f"{live.url}/healthz", headers={"Origin": "https://evil.example"}, timeout=5)
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "Origin" in answer.headers["Vary"]
    assert http.options("/v1/jobs", headers=preflight).headers.get("Access-Control-Allow-Origin") is None


_CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, b"uri_too_long"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 9000 + b"\r\n\r\n", 431, b"headers_too_large"),
        (b"nonsense\r\n\r\n", 400, b"bad_request"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, b"bad_request"),
        (b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", 400, b"bad_request"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, b"bad_request"),
        (_CHUNKED + b"zz\r\n", 400, b"bad_request"),
        (_CHUNKED + b"2\r\n{}0\r\n\r\n", 400, b"bad_request"),
    ],
)
def test_what_the_server_refuses_is_a_problem_too(live, data, status, code):
    found, head, body = _raw(live, data)
    assert found == status
    assert b"content-type: application/problem+json" in head
    problem, _ = json.JSONDecoder().raw_decode(body.decode())
    assert (problem["status"], problem["code"].encode()) == (status, code)
    assert b"xxx" not in body


def test_the_log_is_json_and_holds_no_prompt_and_no_secret(live, client):
    body = {"prompt": "find-this-prompt", "size": "32x32", "webhook_url": "http://127.0.0.1:1/find-this-hook"}
    headers = {
        "X-Request-ID": "log-test-1",
        "Authorization": "Bearer find-this-token",
        "Idempotency-Key": "find-this-key",
    }
    assert requests.post(f"{live.url}/v1/jobs", json=body, headers=headers, timeout=5).status_code == 202
    requests.get(f"{live.url}/find this path?q=find-this-query", headers={"X-Request-ID": "log-test-2"}, timeout=5)
    text = live.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    mine = {line["request_id"]: line for line in lines if line.get("request_id", "").startswith("log-test")}
    assert (mine["log-test-1"]["method"], mine["log-test-1"]["path"], mine["log-test-1"]["status"]) == (
        "POST",
        "/v1/jobs",
        202,
    )
    assert mine["log-test-1"]["ms"] >= 0
    assert mine["log-test-2"]["path"] == "(odd)"
    assert "find-this" not in text
    assert "find this" not in text


def test_presigned_urls_are_short_lived_and_for_the_public_endpoint(servers, store, settings, client):
    """Signed for the inner host, and rewriting broke the signature: minio/minio#20964, minio/minio-py#759,
    minio/minio-js#1232. Dead before its time: boto/boto3#2392, boto/boto3#3079. Prompts in file names:
    apple/ml-stable-diffusion#48, AUTOMATIC1111/stable-diffusion-webui#3791.
    """
    http = build(servers.settings(s3_public_endpoint="https://cdn.example", presign_s=60)).test_client()
    job = http.post("/v1/jobs", json={"prompt": "find-me", "size": "256x256"}).get_json()
    key = finish(store, settings, job["id"])
    assert key.startswith(f"jobs/{job['id']}/0/"), "ids alone"
    url = http.get(f"/v1/jobs/{job['id']}/images/0/content").headers["Location"]
    assert url.startswith("https://cdn.example/")
    assert "X-Amz-Expires=60" in url
    assert "X-Amz-Signature" in url
    assert servers.environment["PLANPAINT_S3_ENDPOINT"].split("//")[1] not in url


def test_prompts_in_any_script_reach_no_object_metadata(http, store, settings, client):
    """Non-ASCII metadata was refused: boto/boto3#478, minio/minio-py#764. Default checksums: boto/boto3#4392,
    boto/boto3#4435, langgenius/dify#35117.
    """
    from app import wiring

    job = http.post("/v1/jobs", json={"prompt": "猫" * 300, "size": "256x256"}).get_json()
    key = finish(store, settings, job["id"])
    blobs = wiring.worker_blobs(settings)
    head = blobs._client.head_object(Bucket=blobs._bucket, Key=key)
    assert head["Metadata"] == {}
    assert blobs._client.meta.config.request_checksum_calculation == "when_required"
