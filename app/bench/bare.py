"""What `planpaint bench api` measures against: a Flask view that appends its request to a stream, and nothing else."""

import os

import redis
from flask import Flask, request
from flask.typing import ResponseReturnValue

from app.connect import Client


def create() -> Flask:
    app = Flask("bare")
    client: Client = redis.Redis.from_url(os.environ["PLANPAINT_REDIS_URL"])

    @app.post("/v1/jobs")
    def submit() -> ResponseReturnValue:
        entry = client.xadd("bare", {"request": request.get_data()})
        return {"id": entry.decode()}, 202

    return app
