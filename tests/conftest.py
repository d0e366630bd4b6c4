"""Fixtures for every test. A server that cannot start fails the tests that need it; nothing is skipped."""

import gc
import os

import structlog
from hypothesis import settings

# Test processes run side by side: two that each spin up a thread for every core slow each other down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Until the tests are imported, all of which stays: looking at it again and again costs seconds.
gc.disable()

# No test asserts a time: examples may be slow on a loaded machine.
settings.register_profile("planpaint", deadline=None)
settings.load_profile("planpaint")

# The pretty tracebacks, which structlog takes where it finds rich, cost more than many a test.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

pytest_plugins = ["tests.servers", "tests.fixtures_checkpoints"]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
