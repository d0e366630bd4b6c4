import pytest

from app import keys
from app.domain.access import LimitChanges, Limits, Scope
from app.errors import NotFound
from app.store.api_keys import ApiKeys, digest_of


def test_a_key_is_found_by_its_secret_alone(client):
    registry = ApiKeys(client)
    assert not registry.any()
    key, secret = registry.create("studio, 猫", [Scope.JOBS_READ], LimitChanges(images=5, pixels=0))
    other, _ = registry.create("other", list(Scope), LimitChanges())
    assert registry.find(digest_of(secret)) == key
    assert key.name == "studio, 猫"
    assert key.scopes == {Scope.JOBS_READ}
    assert key.limits.applied_to(Limits(9, 9, 9)) == Limits(9, 5, 0)
    assert registry.find(digest_of(secret + "x")) is None
    assert [found.id for found in registry.list()] == [key.id, other.id] or key.created_at == other.created_at


def test_the_secret_is_nowhere_in_redis(client):
    _, secret = ApiKeys(client).create("x", [Scope.ADMIN], LimitChanges())
    dumped = b"".join(key + client.dump(key) for key in client.scan_iter())
    assert secret.encode() not in dumped
    assert secret.removeprefix("planpaint_").encode() not in dumped
    assert len(secret) >= 43


def test_a_revoked_key_stays_known_as_such(client):
    registry = ApiKeys(client)
    key, secret = registry.create("x", [Scope.JOBS_READ], LimitChanges())
    first, second = (registry.revoke(key.id) for _ in range(2))
    assert first == second == registry.find(digest_of(secret))
    assert first.revoked_at >= key.created_at
    assert registry.any(), "or revoking the last key would let everybody in"
    assert [found.revoked_at for found in registry.list()] == [first.revoked_at]
    with pytest.raises(NotFound):
        registry.revoke("key_nobody")
    assert client.exists(keys.API_KEYS)
