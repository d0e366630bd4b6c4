"""Checkpoints for tests: the trained small one, and a random tiny one built once a run."""

import pytest

from app.checkpoint import DEMO, Checkpoint


@pytest.fixture(scope="session")
def demo_checkpoint():
    return Checkpoint(DEMO)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    from app.tiny_checkpoint import make  # torch and diffusers take seconds; most tests need neither

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    make(folder)
    return Checkpoint(folder)
