"""Fixtures for every test. A server that cannot start fails the tests that need it; nothing is skipped."""

import importlib.util

pytest_plugins = ["tests.servers"]
if importlib.util.find_spec("tests.fixtures_checkpoints"):
    pytest_plugins.append("tests.fixtures_checkpoints")
