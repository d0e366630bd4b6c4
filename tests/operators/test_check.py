"""`planpaint check` on a real store: silent while all is well, also under load; each kind of damage has its name."""

import hashlib
import json
import random
import threading

import pytest
from click.testing import CliRunner

from app import keys, wiring
from app.cli import cli
from app.domain.job import Priority
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import LostLease
from app.invariants import run
from app.invariants.run import Checker
from app.queues.ar_stream import ArStream
from app.store.inventory import Inventory
from app.store.jobs import Terms
from tests.store.orders import PLAN, paint, parameters, place, plan, stored, submit

S = ImageState


@pytest.fixture
def blobs(settings):
    return wiring.worker_blobs(settings)


@pytest.fixture
def look(client, settings, blobs, monkeypatch):
    """Names and subjects of what is wrong."""
    monkeypatch.setattr(run, "_PAUSE_S", 0.01)

    def call(objects="none", orphan_s=0.0):
        checker = Checker(Inventory(client), blobs, horizon_ms=600_000, orphan_s=orphan_s)
        return [(each.check, each.subject) for each in checker.run(objects).violations]

    return call


@pytest.fixture
def stream(client):
    found = ArStream(client, "w1")
    found.ensure_groups()
    return found


def _painted(store, blobs, **terms):
    """A job of one image with real objects."""
    ref = ImageRef(submit(store, **terms), 0)
    store.hand_over(plan(store, ref), PLAN)
    lease = paint(store, ref)
    data = b"a picture"
    digest = hashlib.sha256(data).digest()
    blob = blobs.put(f"jobs/{ref.job_id}/0/{lease.fence}.png", data, "image/png", digest)
    store.commit(lease, blob, steps=12)
    return ref


def test_images_in_every_state_are_in_order(store, stream, look, blobs, client, settings):
    for state in ImageState:
        place(store, state)
    for owner, n in (("key_a", 10), ("key_b", 3)):
        submit(store, n, owner=owner, priority=Priority.BATCH, webhook_url="https://example.org/")
    _painted(store, blobs, webhook_url="https://example.org/", owner="key_a")
    stream.read(5)
    assert wiring.retention(settings, client).delete(_painted(store, blobs).job_id)
    assert [each for each in look("sample", orphan_s=3600) if each[0] != "objects"] == []


class Load(threading.Thread):
    """Moves of all kinds, one after another, until it is stopped. Use as a context manager."""

    def __init__(self, store, stream):
        super().__init__()
        self._store, self._stream = store, stream
        self._draw, self._stop_it = random.Random(3), threading.Event()
        self._refs, self._leases = [], []
        self.failures = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_it.set()
        self.join()

    def run(self):
        moves = [self._submit, self._cancel, self._claim, self._finish, self._finish, self._sweep]
        while not self._stop_it.is_set() and not self.failures:
            try:
                self._draw.choice(moves)()
            except LostLease:
                continue
            except Exception as error:
                self.failures.append(error)

    def _submit(self):
        owner = self._draw.choice(("key_a", "anybody"))
        self._refs.append(ImageRef(submit(self._store, self._draw.randint(1, 6), owner=owner), 0))

    def _cancel(self):
        if self._refs and self._draw.random() < 0.3:
            self._store.cancel(self._draw.choice(self._refs))

    def _claim(self):
        for hint in self._stream.read(4):
            order = self._store.claim_plan(hint.ref, entry=hint.entry, token=f"w1/{hint.entry}")
            if order is None:
                self._stream.drop(hint)
            else:
                self._leases.append(order.lease)

    def _finish(self):
        if self._leases:
            lease = self._leases.pop()
            self._store.hand_over(lease, PLAN)
            self._store.commit(paint(self._store, lease.ref), stored(f"jobs/{lease.ref}/1.png"), steps=12)

    def _sweep(self):
        for ref in self._store.due(20):
            self._store.sweep(ref)


def test_a_store_under_load_is_in_order(store, stream, look):
    with Load(store, stream) as load:
        found = [look() for _ in range(4)]
    assert load.failures == []
    assert found == [[]] * 4


def _image(client, ref, **fields):
    client.hset(keys.image(ref.job_id, ref.index), mapping=fields)


DAMAGES = {
    "a live image that is not due": (S.PAINTING, "due", lambda c, r: c.zrem(keys.DUE, str(r))),
    "an ended image that is due": (S.FAILED, "due", lambda c, r: c.zadd(keys.DUE, {str(r): 1})),
    "an image due in a year": (S.QUEUED, "due", lambda c, r: c.zadd(keys.DUE, {str(r): 10**14})),
    "a due image that is not there": (None, "due", lambda c, r: c.zadd(keys.DUE, {"job_no:0": 1})),
    "a lease without an owner": (S.PLANNING, "state", lambda c, r: c.hdel(keys.image(r.job_id, 0), "owner")),
    "an owner without a lease": (S.PLANNED, "state", lambda c, r: _image(c, r, owner="w/1")),
    "a fence that went back": (S.PAINTING, "state", lambda c, r: _image(c, r, fence=0)),
    "an unknown state": (S.QUEUED, "state", lambda c, r: _image(c, r, state="lost")),
    "a picture that was not committed": (S.PAINTING, "state", lambda c, r: _image(c, r, object_key="jobs/x")),
    "a commit that was lost": (S.SUCCEEDED, "state", lambda c, r: c.hdel(keys.image(r.job_id, 0), "object_key")),
    "a plan that was lost": (S.PLANNED, "state", lambda c, r: c.hdel(keys.image(r.job_id, 0), "prior_height")),
    "a wrong count of the job": (S.SUCCEEDED, "counts", lambda c, r: c.hset(keys.job(r.job_id), "ended", 0)),
    "a wrong count of events": (S.QUEUED, "counts", lambda c, r: c.hset(keys.job(r.job_id), "undelivered", 3)),
    "a wrong count of images": (S.QUEUED, "totals", lambda c, r: c.hincrby(keys.COUNTS, "queued", 2)),
    "a wrong count of an owner": (S.QUEUED, "totals", lambda c, r: c.hincrby(keys.ACTIVE, "anybody", -1)),
    "a gap in the log": (S.SUCCEEDED, "events", lambda c, r: c.xdel(keys.events(r.job_id), "2-0")),
    "a log that ends early": (S.SUCCEEDED, "events", lambda c, r: c.xdel(keys.events(r.job_id), "3-0")),
    "a log that tells another end": (
        S.SUCCEEDED,
        "events",
        lambda c, r: _image(c, r, state="failed", error_code="x"),
    ),
    "an image in no queue": (S.PLANNED, "hints", lambda c, r: c.zrem(keys.WAITING_DIT, str(r))),
    "an ended image in a queue": (S.FAILED, "hints", lambda c, r: c.zadd(keys.WAITING_REALTIME, {str(r): 1})),
    "a hint that is lost": (S.QUEUED, "hints", lambda c, r: c.xtrim(keys.AR_REALTIME, maxlen=0, approximate=False)),
    "a hint of nobody": (
        None,
        "streams",
        lambda c, r: c.xadd(keys.AR_REALTIME, {"job": "job_no", "index": 0, "schema": 1}),
    ),
    "a job that stays for ever": (S.SUCCEEDED, "lists", lambda c, r: c.zrem(keys.EXPIRY, r.job_id)),
    "a job that is in no list": (S.QUEUED, "lists", lambda c, r: c.zrem(keys.jobs_of("anybody"), r.job_id)),
    "a list of what is not there": (None, "owners", lambda c, r: c.zadd(keys.jobs_of("anybody"), {"job_no": 1})),
    "an event of nobody": (None, "owners", lambda c, r: c.zadd(keys.OUTBOX, {"job_no:1": 1})),
    "a removal that is late": (S.SUCCEEDED, "owners", lambda c, r: c.zadd(keys.EXPIRY, {r.job_id: 1})),
    "objects that nobody removes": (None, "trash", lambda c, r: c.zadd(keys.TRASH, {"job_no": 1})),
    "an image without its job": (None, "keys", lambda c, r: c.hset(keys.image("job_no", 0), "state", "failed")),
    "a record that lapses": (S.QUEUED, "keys", lambda c, r: c.expire(keys.job(r.job_id), 100)),
    "a tombstone that stays": (None, "keys", lambda c, r: c.set(keys.tombstone("job_no"), "deleted anybody")),
    "a dead letter of a living image": (S.QUEUED, "dead", lambda c, r: c.zadd(keys.DEAD, {str(r): 1})),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_kind_of_damage_is_named(store, stream, client, look, name):
    state, check, damage = DAMAGES[name]
    place(store, S.PLANNED)
    ref = place(store, state).ref if state else None
    assert look() == []
    damage(client, ref)
    found = look()
    assert check in [named for named, _ in found]
    if ref:
        assert any(ref.job_id in subject or check == "totals" for named, subject in found if named == check)


def test_a_pending_entry_that_is_gone_is_named(store, stream, client, look):
    submit(store)
    (hint,) = stream.read(1)
    client.xdel(keys.AR_REALTIME, hint.entry)
    assert ("streams", f"{keys.AR_REALTIME} {hint.entry}") in look()


def test_an_image_in_neither_line_nor_turn_is_named(store, stream, client, look):
    job_id = submit(store, 6, owner="key_a")
    assert look() == []
    client.delete(keys.line(Priority.REALTIME, "key_a"))
    assert ("hints", f"{job_id}:5") in look()


@pytest.mark.parametrize("which", ["sample", "all"])
def test_objects_are_compared_and_orphans_found(store, blobs, client, look, which):
    blobs.delete_under("jobs/")
    good, missing, cut = (_painted(store, blobs) for _ in range(3))
    assert look(which) == []
    key = {ref: store.get(ref.job_id).images[0].stored.key for ref in (good, missing, cut)}
    blobs.delete(key[missing])
    blobs.put(key[cut], b"a pict", "image/png", hashlib.sha256(b"a pict").digest())
    orphan = "jobs/job_gone/0/1.png"
    blobs.put(orphan, b"x", "image/png", hashlib.sha256(b"x").digest())
    assert sorted(look(which)) == sorted([("objects", str(missing)), ("objects", str(cut)), ("orphans", orphan)])
    assert ("orphans", orphan) not in look(which, orphan_s=3600)
    client.zadd(keys.TRASH, {"job_gone": 10**14})
    assert ("orphans", orphan) not in look(which)
    blobs.put(key[cut], b"A PICTURE", "image/png", hashlib.sha256(b"A PICTURE").digest())
    assert (("objects", str(cut)) in look(which)) == (which == "sample"), "only what is read is compared byte by byte"
    blobs.delete_under("jobs/")


def test_the_command_says_it_and_its_status_too(store, client, servers, monkeypatch):
    monkeypatch.setattr(run, "_PAUSE_S", 0.01)
    store.submit("job_" + "0" * 32, parameters(), Terms(), metadata={})
    good = CliRunner().invoke(cli, ["check", "--objects", "none", "--json"], env=servers.environment)
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout) == {"ok": True, "checked": {"jobs": 1, "images": 1, "objects": 0}, "violations": []}
    client.zrem(keys.DUE, f"job_{'0' * 32}:0")
    bad = CliRunner().invoke(cli, ["check", "--objects", "none"], env=servers.environment)
    assert bad.exit_code == 1
    assert bad.stdout.startswith(f"due: job_{'0' * 32}:0: queued, and not in due")
