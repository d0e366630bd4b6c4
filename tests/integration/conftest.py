from collections.abc import Iterator

import pytest

from tests.integration.stack import RunningStack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """One stack on the demo checkpoint for all tests that leave it running."""
    running = RunningStack(tmp_path_factory.mktemp("stack"))
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()
