import threading

from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import Unavailable
from tests.servers import wait_until
from tests.store.orders import place
from workers.heartbeat import Heartbeat
from workers.process import patiently
from workers.sweeper import Sweeper

S = ImageState


def test_a_held_lease_outlives_its_length(store, client, heartbeat):
    placed = place(store, S.PAINTING)
    heartbeat.hold(placed.lease)
    first = client.zscore("planpaint:due", str(placed.ref))
    wait_until(lambda: client.zscore("planpaint:due", str(placed.ref)) > first + 1000, what="two renewals")
    assert store.sweep(placed.ref)[0] == "early"
    assert not heartbeat.lost(placed.lease)


def test_a_dropped_lease_is_not_renewed(store, heartbeat):
    placed = place(store, S.PAINTING)
    heartbeat.hold(placed.lease)
    heartbeat.drop(placed.lease)
    wait_until(lambda: placed.ref in store.due(10), what="the lease lapses")


def test_progress_reaches_the_record(store, heartbeat):
    placed = place(store, S.PAINTING)
    heartbeat.hold(placed.lease)
    for step in range(1, 6):
        heartbeat.progress(placed.lease, step)
    wait_until(lambda: store.get(placed.ref.job_id).images[0].step == 5, what="step 5")


def test_a_canceled_image_is_seen_as_lost(store, heartbeat):
    placed = place(store, S.PAINTING)
    heartbeat.hold(placed.lease)
    store.cancel(placed.ref)
    wait_until(lambda: heartbeat.lost(placed.lease), what="the loss is seen")
    heartbeat.drop(placed.lease)
    assert not heartbeat.lost(placed.lease)


def test_the_registry_shows_what_the_worker_does(store, registry, heartbeat):
    states = lambda: [worker.state for worker in registry.list()]  # noqa: E731
    wait_until(lambda: states() == ["starting"], what="starting")
    heartbeat.say("ready")
    wait_until(lambda: states() == ["ready"], what="ready")
    placed = place(store, S.PAINTING)
    heartbeat.hold(placed.lease)
    wait_until(lambda: states() == ["busy"], what="busy")


def test_a_worker_that_ends_leaves_the_registry(store, registry):
    with Heartbeat(store, registry, name="w2", role="ar", device="cpu", lease_s=0.5):
        wait_until(lambda: [worker.name for worker in registry.list()] == ["w2"], what="the beat")
    assert registry.list() == []


class _Away:
    """Stands for a store whose server is away for the first calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.calls = 0

    def sweep(self) -> int:
        self.calls += 1
        if self.calls <= self.away:
            raise Unavailable("away")
        return 0


def test_after_an_outage_the_sweeper_lets_workers_renew_first():
    away = _Away(1)
    sweeper = Sweeper(away, None, lease_s=0.5)
    sweeper.step()
    for _ in range(10):
        sweeper.step()
    assert away.calls == 1
    wait_until(lambda: sweeper.step() or away.calls == 2, what="the next sweep")


def test_patience_ends_with_the_answer_or_the_stop():
    away = _Away(2)
    assert patiently(away.sweep, threading.Event()) == 0
    assert away.calls == 3
    stop = threading.Event()
    stop.set()
    try:
        patiently(_Away(1).sweep, stop)
    except Unavailable:
        return
    raise AssertionError("a stopping process waited on")


def test_refs_of_one_job_are_distinct_leases(store):
    one, two = place(store, S.PAINTING), place(store, S.PAINTING)
    assert one.lease != two.lease
    assert ImageRef.parse(str(one.ref)) == one.ref
