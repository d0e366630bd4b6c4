"""Locust itself, as a process, against a server that is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from werkzeug import Response

from tests.loadtest.made import JOB_ID, image_of

ROOT = Path(__file__).parent.parent.parent


def _run(httpserver, out: Path, user: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/locustfile.py"), "--headless", "--users", "1"]
    command += ["--host", httpserver.url_for("").rstrip("/"), "--run-time", "3s", "--patience", "1"]
    command += ["--stop-timeout", "20", "--only-summary", "--summary", str(out / "summary.json"), user]
    environment = os.environ | {"LOADTEST_API_KEY": "k1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("user", "says"),
    [("PollingUser", "seed of image 0"), ("StreamingUser", "seed of image 0"), ("WebhookUser", "none of Standard")],
)
def test_a_service_that_is_wrong_fails_the_run(httpserver, tmp_path, user, says):
    """It accepts every job, and draws it from a seed of its own."""

    def submit(request) -> Response:
        asked = request.get_json()
        width, height = map(int, asked["size"].split("x"))
        image = {"seed": asked["seed"] + 1, "width": width, "height": height, "steps": asked["steps"]}
        images = [image_of(index=i, status="queued", content_url=None, step=0) | image for i in range(asked["n"])]
        job = {"id": JOB_ID, "status": "queued", "completed_at": None, "parameters": asked, "images": images}
        return Response(json.dumps(job | {"metadata": asked["metadata"]}), 202)

    httpserver.expect_request("/v1/jobs", method="POST").respond_with_handler(submit)
    httpserver.expect_request("/v1/jobs", method="GET").respond_with_json(
        {"data": [], "has_more": False, "next_cursor": None}
    )
    httpserver.expect_request("/v1/webhook-secret").respond_with_json({"key": "hunter2", "previous": []})
    found = _run(httpserver, tmp_path, user)
    assert found.returncode == 1, found.stderr
    assert {request.headers["Authorization"] for request, _ in httpserver.log} == {"Bearer k1"}
    totals = json.loads((tmp_path / "summary.json").read_text())
    failures = " ".join(failure["error"] for failure in totals["failures"])
    assert says in failures
    if user == "WebhookUser":
        assert totals["accepted"] == 0
    else:
        assert totals["lost"] == [JOB_ID]
        assert "accepted jobs that are not listed" in failures
