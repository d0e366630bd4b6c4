"""The running service keeps what its OpenAPI description says, for requests that schemathesis thinks up.

`make api-fuzz` runs the same with more of them.
"""

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from api.application import build
from api.describe import describe
from app.settings import load
from tests.api.conftest import Live, make_key, running

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "6"))


@pytest.fixture(scope="session")
def quick(servers, tmp_path_factory) -> Iterator[Live]:
    """A process whose waits are short: nobody works behind it."""
    make_key(servers)
    with running(
        servers,
        tmp_path_factory.mktemp("quick"),
        openai_wait_s="1",
        api_keys="required",
        key_requests="0",
        key_images="0",
        sse_max_s="1",
        default_size="32x32",
    ) as found:
        yield found


@pytest.fixture
def secret(servers, client) -> str:
    """On an empty database. What is described to need a key is tried without it, too."""
    return make_key(servers)


schema = schemathesis.openapi.from_dict(describe(build(load({})).api_doc))


@schema.parametrize()
@hypothesis_settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case, quick, secret):
    # Some rules no schema can say: a cursor is one that was given out, a key belongs to one body, a host exists.
    beyond_schemas = [positive_data_acceptance]
    if case.path.startswith("/v1/images"):
        # Nobody works behind this process, so a call that is let in ends with the 504 that it should.
        beyond_schemas.append(not_a_server_error)
    bearer = {"Authorization": f"Bearer {secret}"}
    case.call_and_validate(base_url=quick.url, timeout=30, headers=bearer, excluded_checks=beyond_schemas)
