"""What the first request with an Idempotency-Key was answered, for those that repeat it."""

import zlib

from app import keys
from app.connect import Client, translated


class Answers:
    def __init__(self, client: Client) -> None:
        self._client = client

    def keep(self, owner: str, key: str, body: bytes) -> None:
        """Store the first answer. It lives as long as its key, and a key that has lapsed meanwhile stays away."""
        name = keys.idempotency(owner, key)
        with translated():
            if self._client.hsetnx(name, "answer", zlib.compress(body)) and not self._client.hexists(name, "job"):
                self._client.delete(name)

    def get(self, owner: str, key: str) -> bytes | None:
        """None when the first request has not been answered yet."""
        with translated():
            stored = self._client.hget(keys.idempotency(owner, key), "answer")
        return None if stored is None else zlib.decompress(stored)

    def known(self, owner: str, key: str) -> tuple[str, str] | None:
        """(fingerprint, job id) of a key, so that a repeat need not store its files again."""
        with translated():
            fingerprint, job_id = self._client.hmget(keys.idempotency(owner, key), "fingerprint", "job")
        return None if fingerprint is None else (fingerprint.decode(), job_id.decode())
