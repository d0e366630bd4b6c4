"""infra/users.acl on a real server: what each role may do, and must not. The whole service runs under it elsewhere."""

import re
import secrets
import time

import pytest
import redis

from app import keys, wiring
from app.connect import connect
from app.domain.access import LimitChanges, Limits, Scope
from app.domain.messages import DitTask, ImageRef
from app.errors import ImageFailed
from app.launcher import embedded
from app.launcher.child import Child
from app.launcher.ports import free_ports
from app.queues.dit_queue import DitQueue, make_celery
from app.settings import load
from app.store import scripts
from app.store.jobs import IdempotencyKey, Terms
from app.store.outbox import Receiver, Settlement
from app.store.workers import WorkerInfo
from tests.operators.secured import INFRA, USERS, write_users
from tests.servers import wait_until
from tests.store.orders import PLAN, parameters, stored

MOVES = ("claim", "hand_over", "renew", "commit", "give_back", "cancel", "sweep")
#: The scripts that each role runs, from the modules that it is made of.
RUNS = {
    "api": ("cancel", "submit", "take", "retire", "outbox_add", "rotate"),
    "ar": ("claim", "hand_over", "renew", "give_back", "beat"),
    "dit": ("claim", "renew", "commit", "give_back", "beat"),
    "courier": ("outbox_take", "outbox_begin", "outbox_settle", "beat"),
    "sweeper": ("sweep", "retire", "beat"),
    "operator": (*MOVES, "submit", "retire", "rotate", "beat", "tally"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(port, passwords) of a server with the users; no other storage."""
    folder, port = tmp_path_factory.mktemp("acl"), free_ports(1)[0]
    passwords = {user: secrets.token_hex(16) for user in (*USERS, "ADMIN")}
    write_users(folder / "users.acl", passwords)
    config = folder / "valkey.conf"
    config.write_text(f'port {port}\nbind 127.0.0.1\naclfile "{folder}/users.acl"\ndir "{folder}"\nsave ""\n')
    child = Child("valkey", [embedded.valkey_binary(), str(config)], environment={}, log=folder / "log")
    child.start()
    try:
        with redis.Redis(port=port, username="admin", password=passwords["ADMIN"]) as client:
            wait_until(lambda: _answers(client), what="valkey")
            yield port, passwords
    finally:
        child.terminate()
        child.finish(time.monotonic() + 10)


def _answers(client):
    try:
        return client.ping()
    except redis.RedisError:
        return False


@pytest.fixture
def admin(server):
    port, passwords = server
    with redis.Redis(port=port, username="admin", password=passwords["ADMIN"], decode_responses=True) as client:
        yield client


def _calls(name):
    """(command, key expression) of every call in a script, those of what is put before it included."""
    source = scripts._source(name)
    if name in scripts.IMAGE_SCRIPTS:
        source = scripts._source("prelude") + source
    elif name in scripts.QUOTA_SCRIPTS:
        source = scripts._source("bucket") + source
    found = set(re.findall(r"redis\.p?call\('([A-Z]+)'", source))
    assert found
    return found


def _dry(admin, user, *command):
    return admin.execute_command("ACL", "DRYRUN", f"planpaint-{user}", *command)


#: Enough arguments that the server takes them for the command.
_ARGUMENTS = {
    "HSET": ("f", "v"), "HDEL": ("f",), "HGET": ("f",), "HMGET": ("f",), "HINCRBY": ("f", 1), "HSETNX": ("f", "v"),
    "HEXISTS": ("f",), "ZADD": (1, "m"), "ZREM": ("m",), "ZRANGE": (0, 1), "ZSCORE": ("m",), "ZPOPMIN": (),
    "SADD": ("m",), "SREM": ("m",), "SCARD": (), "SMEMBERS": (), "SMISMEMBER": ("m",), "XADD": ("*", "f", "v"),
    "XACK": ("g", "1-1"), "XDEL": ("1-1",), "XRANGE": ("-", "+"), "XPENDING": ("g",), "LLEN": (), "DEL": (),
    "EXISTS": (), "HGETALL": (), "HLEN": (), "ZCARD": (), "PEXPIRE": (1,), "ZREMRANGEBYSCORE": (0, 1), "GET": (),
    "SET": ("v",),
}  # fmt: skip


@pytest.mark.parametrize("user", RUNS)
def test_every_command_of_its_scripts_is_allowed(admin, user):
    key = keys.OUTBOX if user == "courier" else keys.DUE
    for script in RUNS[user]:
        for command in _calls(script):
            if command == "TIME":
                answer = _dry(admin, user, command)
            elif command == "PUBLISH":
                answer = _dry(admin, user, command, keys.CHANGES, "x")
            else:
                answer = _dry(admin, user, command, key, *_ARGUMENTS[command])
            assert answer == "OK", (script, command, answer)


@pytest.fixture
def role(server, admin):
    """The settings and a client of one role, on an empty store."""
    admin.flushall()
    port, passwords = server
    opened = []

    def call(user):
        url = f"redis://planpaint-{user}:{passwords[user.upper()]}@127.0.0.1:{port}/0"
        settings = load({"PLANPAINT_REDIS_URL": url, "PLANPAINT_LEASE_S": "0.5", "PLANPAINT_HINT_S": "0.1"})
        opened.append(connect(settings))
        return settings, opened[-1]

    yield call
    for client in opened:
        client.close()


def test_the_roles_pass_a_job_from_hand_to_hand(role, admin):
    """From the submit to the removal, each step under the user whose step it is; the server has denied nothing."""
    stores = {user: wiring.job_store(*role(user)) for user in ("api", "ar", "dit", "sweeper")}
    key = IdempotencyKey("k", "f", 60_000)
    limits = Limits(requests=100, images=100, pixels=10**9)
    terms = Terms(owner="key_a", webhook_url="https://example.org/", ttl_ms=60_000)
    stores["api"].submit("job_1", parameters(6), terms, metadata={}, idempotency=key, limits=limits)
    wiring.answers(role("api")[1]).keep("key_a", "k", b"{}")
    assert wiring.quotas(role("api")[1]).take_request("key_a", 5).allowed
    stream = wiring.ar_stream(role("ar")[1], "ar-1")
    stream.ensure_groups()
    leases = []
    for hint in stream.read(4):
        order = stores["ar"].claim_plan(hint.ref, entry=hint.entry, token=f"ar-1/{hint.entry}")
        leases.append(order.lease)
    wiring.stages(*role("ar")).hand_over(leases[0], PLAN)
    stores["ar"].renew(leases[1])
    assert stores["ar"].canceled(leases) == []
    stores["ar"].release(leases[1])
    for user in ("dit", "sweeper"):
        DitQueue(make_celery(role(user)[0])).publish(DitTask("job_1", 0), first=True)
    wiring.stages(*role("ar")).give_up(leases[2], ImageFailed("ar_error", "no"))
    order = stores["dit"].claim_paint(leases[0].ref, token="dit-1/1")
    stores["dit"].renew(order.lease, step=1)
    stores["dit"].commit(order.lease, stored(), steps=12)
    assert stores["dit"].get("job_1").images[0].state == "succeeded"
    wait_until(lambda: leases[3].ref in stores["sweeper"].due(50), what="the end of the lease")
    wiring.stages(*role("sweeper")).sweep()
    wiring.ar_stream(role("sweeper")[1], "s").forget_idle_consumers(-1)
    for user in ("ar", "dit", "courier", "sweeper"):
        registry = wiring.registry(role(user)[1])
        registry.beat(WorkerInfo(f"{user}-1", user, 1, "h", "cpu", "ready"))
        registry.leave("nobody")
    wiring.ar_stream(role("ar")[1], "ar-1").leave()
    wiring.dead_letters(role("dit")[1]).bury("dit", "junk", "x")
    settings, client = role("courier")
    outbox = wiring.outbox(settings, client)
    for job_id, sequence in outbox.take(10, hold_ms=1000):
        receiver = Receiver("key_a", "https://example.org/", 1)
        assert outbox.begin(job_id, sequence, receiver) == "go"
        outbox.settle(job_id, sequence, Settlement("retry", 10, 500, "no", 3), receiver)
        outbox.settle(job_id, sequence, Settlement("delivered", 0, 200, "", 3), receiver)
        outbox.postpone(job_id, sequence, 1)
    assert wiring.webhook_secrets(settings, client) == wiring.webhook_secrets(*role("api"))
    wiring.rotate_webhook_secret(*role("api"))
    settings, client = role("api")
    api_outbox = wiring.outbox(settings, client)
    api_outbox.redeliver("job_1", 1)
    api_outbox.add_test("test_1", "key_a", "https://example.org/")
    assert wiring.outbox(*role("courier")).test("test_1")
    stores["api"].cancel_all([ImageRef("job_1", index) for index in range(6)])
    wait_until(lambda: not stores["sweeper"].due(50) or wiring.stages(*role("sweeper")).sweep() is None, what="the end")
    wait_until(lambda: stores["api"].get("job_1").done or not stores["sweeper"].sweep(leases[3].ref), what="the end")
    assert stores["api"].page("key_a", limit=5).jobs
    assert stores["api"].stats()
    assert wiring.outlooks(client).of(stores["api"].get("job_1"))
    assert wiring.api_keys(client).find("x") is None
    assert not wiring.api_keys(client).any()
    wiring.retention(*role("api")).reserve("job_2")
    assert wiring.retention(*role("sweeper")).trash(10) == []
    assert wiring.retention(*role("api")).delete("job_1")
    retention = wiring.retention(*role("sweeper"))
    assert retention.trash(10) == ["job_1"]
    assert retention.expired(10) == []
    assert not retention.wanted("job_1")
    retention.postpone("job_1", 10)
    retention.emptied("job_1")
    operator, client = role("operator")
    wiring.api_keys(client).create("x", list(Scope), LimitChanges())
    assert wiring.checker(operator, client).run("none").violations == []
    assert wiring.dead_letters(client).newest(5)
    assert wiring.dead_letters(client).drop(wiring.dead_letters(client).all_ids())
    wiring.registry(client).drain(["x"])
    assert list(wiring.overview(client).unfinished()) == []
    assert admin.execute_command("ACL", "LOG") == []


def test_every_script_is_run_by_somebody():
    known = {*scripts.IMAGE_SCRIPTS, *scripts.QUOTA_SCRIPTS, *scripts.OTHER_SCRIPTS}
    assert known == {name for names in RUNS.values() for name in names}


@pytest.mark.parametrize("user", RUNS)
@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("CONFIG", "SET", "dir", "/"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("ACL", "SETUSER", "x"),
        ("ACL", "LIST"),
        ("MODULE", "LOAD", "x"),
        ("REPLICAOF", "h", "1"),
        ("DEBUG", "SLEEP", "1"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("MONITOR",),
        ("GET", "another:key"),
        ("SET", "another:key", "x"),
        ("SUBSCRIBE", "another"),
    ],
)
def test_nobody_rules_the_server_or_leaves_the_prefix(admin, user, command):
    assert _dry(admin, user, *command) != "OK"


@pytest.mark.parametrize(
    ("user", "command"),
    [
        *[(user, ("GET", keys.WEBHOOK_SECRET)) for user in ("ar", "dit", "sweeper")],
        *[(user, ("SET", keys.WEBHOOK_SECRET, "x")) for user in ("ar", "dit", "sweeper")],
        *[(user, ("HGETALL", keys.api_key("x"))) for user in ("ar", "dit", "sweeper", "courier")],
        *[(user, ("HSET", keys.api_key("x"), "f", "v")) for user in ("api", "ar", "dit", "sweeper", "courier")],
        *[(user, ("HSET", keys.API_KEYS, "f", "v")) for user in ("api", "ar", "dit", "sweeper", "courier")],
        *[(user, ("EVAL", "return 1", "0")) for user in ("api", "ar", "dit", "sweeper", "courier")],
        *[(user, ("SADD", keys.DRAINED, "x")) for user in ("api", "courier")],
        *[(user, ("SCAN", "0")) for user in ("api", "ar", "dit", "sweeper", "courier")],
        *[(user, ("HSET", keys.image("x", 0), "state", "failed")) for user in ("courier",)],
        *[(user, ("BRPOP", keys.DIT_LIST, "1")) for user in ("api", "ar", "sweeper", "courier")],
        *[(user, ("XREADGROUP", "GROUP", "ar", "c", "STREAMS", keys.AR_REALTIME, ">")) for user in ("api", "dit")],
    ],
)
def test_a_role_keeps_to_its_own(admin, user, command):
    assert _dry(admin, user, *command) != "OK"


def test_without_a_user_nothing_is_answered(server):
    port, _ = server
    with redis.Redis(port=port) as stranger, pytest.raises(redis.RedisError, match="authenticat"):
        stranger.get(keys.WEBHOOK_SECRET)
    with redis.Redis(port=port, username="planpaint-health", password="x") as health:
        assert health.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            health.get(keys.DUE)


def test_each_user_has_a_password_of_its_own():
    text = (INFRA / "users.acl").read_text("utf-8")
    assert {user.lower() for user in USERS} == set(RUNS)
    assert len(re.findall(r" >\S+", text)) == len(USERS)
    assert "nopass" not in text.replace("user planpaint-health on nopass resetkeys resetchannels -@all +ping", "")
