"""The API keys. Redis holds their SHA-256 alone: 256 random bits need no slower hash."""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import asdict

from app import keys
from app.connect import Client, translated
from app.domain.access import ApiKey, LimitChanges, Scope
from app.errors import NotFound

#: Start of every key, so that people and secret scanners know one when they see it.
_PREFIX = "planpaint_"


class ApiKeys:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, scopes: Iterable[Scope], limits: LimitChanges) -> tuple[ApiKey, str]:
        """A new key and its secret, which nobody can read again."""
        secret = _PREFIX + secrets.token_urlsafe(32)
        key_id, digest = f"key_{secrets.token_hex(8)}", digest_of(secret)
        changes = {name: value for name, value in asdict(limits).items() if value is not None}
        with translated():
            fields = {"id": key_id, "name": name, "scopes": " ".join(sorted(scopes)), "created_at": self._now()}
            pipe = self._client.pipeline(transaction=True)
            pipe.hset(keys.api_key(digest), mapping=fields | changes)
            pipe.hset(keys.API_KEYS, key_id, digest)
            pipe.execute()
            return _load(self._client.hgetall(keys.api_key(digest))), secret

    def find(self, digest: str) -> ApiKey | None:
        """The key whose secret has this SHA-256, also a revoked one."""
        with translated():
            record = self._client.hgetall(keys.api_key(digest))
        return _load(record) if record else None

    def any(self) -> bool:
        """Whether there has ever been a key: revoking the last one opens no door."""
        with translated():
            return bool(self._client.exists(keys.API_KEYS))

    def list(self) -> list[ApiKey]:
        """All, the oldest first; revoked ones stay, as the names of the jobs that they own."""
        with translated():
            digests = self._client.hvals(keys.API_KEYS)
            pipe = self._client.pipeline(transaction=False)
            for digest in digests:
                pipe.hgetall(keys.api_key(digest.decode()))
            records = pipe.execute()
        return sorted((_load(record) for record in records if record), key=lambda key: (key.created_at, key.id))

    def revoke(self, key_id: str) -> ApiKey:
        """May be repeated. Raises NotFound."""
        with translated():
            digest = self._client.hget(keys.API_KEYS, key_id)
            if digest is None:
                raise NotFound(f"no key {key_id[:80]}")
            name = keys.api_key(digest.decode())
            self._client.hsetnx(name, "revoked_at", self._now())
            return _load(self._client.hgetall(name))

    def _now(self) -> int:
        seconds, microseconds = self._client.time()
        return int(seconds * 1000 + microseconds // 1000)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _load(record: dict[bytes, bytes]) -> ApiKey:
    def number(name: str) -> int | None:
        value = record.get(name.encode())
        return None if value is None else int(value)

    return ApiKey(
        id=record[b"id"].decode(),
        name=record[b"name"].decode(),
        scopes=frozenset(Scope(scope) for scope in record[b"scopes"].decode().split()),
        limits=LimitChanges(number("requests"), number("images"), number("pixels")),
        created_at=int(record[b"created_at"]),
        revoked_at=number("revoked_at"),
    )
