"""The running service keeps what its OpenAPI description says, for requests that schemathesis thinks up.

All of its checks are on. `make api-fuzz` runs the same with more requests, other ones each time, and the whole stack.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, reject
from hypothesis import settings as hypothesis_settings
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.openapi.checks import RejectedPositiveData
from schemathesis.specs.openapi import _hypothesis
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from api.application import build
from app.domain.access import Scope
from app.settings import load
from tests.api.conftest import make_key, running
from tests.api.orders import Workers
from tests.integration.stack import RunningStack
from tests.servers import Servers, wait_until

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))

#: What no schema can say: the fields that a request may be refused for although its schema calls it valid, and why.
BEYOND_SCHEMAS = {
    "cursor": "is not one that this service gave out",
    "Idempotency-Key": "came with another request before",
    "Cancel-After": "must be ",  # 5 s to 7 days, however that is written
    "prompt": "tokens|is required",  # required unless a plan is reused
    "images?(/[0-3])?": "",  # bytes that are a picture of a kind that is taken, by whatever way they come
    "reuse_prior": "no job|no prior tokens|has images",
    "webhook_url|url": "must be an absolute http or https URL",  # what a host, a port and IDNA may be
    "guidance": "must not come with",
    "webhook_events": "needs a webhook_url",
    "metadata": "bytes as JSON|plain JSON|lone surrogate|nested at most",
    "size": "pixels",  # the operator's budget
}


_draw = _hypothesis._draw


def _drawn_without_a_fault(draw, strategy, operation):
    """schemathesis 4.32 now and then thinks up a form with a file that its own validator cannot look at."""
    try:
        return _draw(draw, strategy, operation)
    except ValueError as fault:
        if "Unsupported type: 'Binary'" in str(fault):
            reject()
        raise


_hypothesis._draw = _drawn_without_a_fault


def accepts_what_is_valid(ctx, response, case) -> bool | None:
    """schemathesis's own check, but for the rules that no schema can say."""
    try:
        return positive_data_acceptance(ctx, response, case)
    except RejectedPositiveData:
        for field, detail in _refusals(response.json()):
            if not any(re.fullmatch(name, field) and re.search(why, detail) for name, why in BEYOND_SCHEMAS.items()):
                raise
        return None


def refuses_what_is_invalid(ctx, response, case) -> bool | None:
    """schemathesis's own check, but for a case whose wrong name in the query has no value and so was never sent."""
    try:
        return negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData:
        sent = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
        if set(case.query or {}) <= set(sent):
            raise
        return None


def _refusals(body: dict) -> list[tuple[str, str]]:
    """(field, detail) of each thing that is said to be wrong."""
    if "error" in body:
        return [(body["error"]["param"] or "", body["error"]["message"])]
    return [(each["pointer"].removeprefix("/"), each["detail"]) for each in body["errors"]] or [("", body["detail"])]


@contextmanager
def _played(servers: Servers, folder: Path) -> Iterator[str]:
    """An API process with workers that are played by hand."""
    make_key(servers)
    limits = {"key_requests": "0", "key_images": "0", "sse_max_s": "1", "default_size": "32x32"}
    with Workers(servers.settings()), running(servers, folder, api_keys="required", **limits) as live:
        yield live.url


@contextmanager
def _real(folder: Path) -> Iterator[tuple[str, str]]:
    """A whole stack on a tiny checkpoint, and a key to it. Pictures are small: a CPU paints them."""
    from app.tiny_checkpoint import make  # torch takes seconds

    make(folder / "tiny")
    limits = {"CHECKPOINT": str(folder / "tiny"), "MAX_PIXELS": str(64 * 64), "DEFAULT_SIZE": "32x32", "SSE_MAX_S": "1"}
    stack = RunningStack(folder / "data", environment={f"PLANPAINT_{name}": value for name, value in limits.items()})
    try:
        stack.wait_ready()
        command = [sys.executable, "-m", "app.cli", "keys", "create", "fuzz", "--data-dir", str(stack.data)]
        command += ["--requests", "0", "--images", "0", *(part for scope in Scope for part in ("--scope", scope.value))]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        wait_until(
            lambda: requests.get(f"{stack.url}/v1/queue", timeout=10).status_code == 401, what="the need of a key"
        )
        yield stack.url, made.stdout.strip()
    finally:
        assert stack.stop() == 0


@pytest.fixture(scope="module")
def service(request, tmp_path_factory) -> Iterator[tuple[str, str | None]]:
    """The URL of a service, and its key."""
    folder = tmp_path_factory.mktemp("fuzzed")
    if EXAMPLES:
        with _real(folder) as found:
            yield found
    else:
        with _played(request.getfixturevalue("servers"), folder) as url:
            yield url, None


@pytest.fixture
def door(service, request) -> tuple[str, str]:
    """URL and key. What is played is tried on an empty database, and what needs a key without it, too."""
    url, secret = service
    if secret is None:
        request.getfixturevalue("client")
        secret = make_key(request.getfixturevalue("servers"))
    return url, secret


#: As schemathesis has it, and the two of what is too long.
_REJECTED = ["400", "401", "403", "404", "405", "406", "409", "414", "415", "422", "428", "429", "431", "5xx"]
schema = schemathesis.openapi.from_dict(
    build(load({})).test_client().get("/openapi.json").get_json(),
    config=SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": _REJECTED}}}),
)


@schema.parametrize()
@hypothesis_settings(
    max_examples=EXAMPLES or 6,
    deadline=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case, door):
    url, secret = door
    case.call_and_validate(
        base_url=url,
        timeout=60,
        headers={"Authorization": f"Bearer {secret}"},
        excluded_checks=[positive_data_acceptance, negative_data_rejection],
        additional_checks=[accepts_what_is_valid, refuses_what_is_invalid],
    )
