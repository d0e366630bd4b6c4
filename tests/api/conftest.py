import pytest
from flask import Flask
from flask.testing import FlaskClient

from api.application import build
from app.connect import Client
from tests.servers import Servers


@pytest.fixture(scope="session")
def app(servers: Servers) -> Flask:
    return build(servers.settings(lease_s=0.5, hint_s=0.2))


@pytest.fixture
def http(app: Flask, client: Client) -> FlaskClient:
    """A test client of the API on an empty database."""
    return app.test_client()
