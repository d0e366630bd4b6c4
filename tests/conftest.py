"""Fixtures for every test. A server that cannot start fails the tests that need it; nothing is skipped."""

import os

# Test processes run side by side: two that each spin up a thread for every core slow each other down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# No test asserts a time: examples may be slow on a loaded machine.
settings.register_profile("planpaint", deadline=None)
settings.load_profile("planpaint")

pytest_plugins = ["tests.servers", "tests.fixtures_checkpoints"]
