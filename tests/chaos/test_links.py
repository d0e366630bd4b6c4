"""Links that are slow, silent or cut between a worker and Redis or object storage, and answers lost on the way."""

import hashlib
import random
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import click
import pytest

from app import keys, wiring
from app.blobs import BlobStore
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import ImageFailed, Unavailable
from app.settings import PREFIX
from tests.chaos.conftest import Attacked
from tests.chaos.proxy import Proxy
from tests.store.orders import PLAN, entry_of, paint, plan, stored, submit

S = ImageState


def _through(url: str, proxy: Proxy) -> str:
    port = urlsplit(url).port
    return url.replace(f":{port}/", f":{proxy.port}/")


@pytest.fixture
def link(servers, client) -> Iterator[tuple[Proxy, object]]:
    """A store whose link to the real server can be hurt."""
    url = servers.environment[PREFIX + "REDIS_URL"]
    with Proxy(urlsplit(url).port) as proxy:
        settings = servers.settings(redis_url=_through(url, proxy), lease_s=30, hint_s=30)
        far = wiring.api_client(settings)
        yield proxy, wiring.job_store(settings, far)
        far.close()


def _submitted(store) -> ImageRef:
    return ImageRef(submit(store), 0)


def _lossy(proxy: Proxy, call):
    """Lose the answer to a call; a client that gives up calls once more, as ours do."""
    proxy.lose_answers = 1
    try:
        return call()
    except Unavailable:
        return call()


def test_every_hand_over_may_lose_its_answer_and_be_repeated(link, store, client):
    """redis-py#977: a command whose answer was lost ran twice."""
    proxy, far = link
    far.ping()
    ref = _submitted(far)
    order = _lossy(proxy, lambda: far.claim_plan(ref, entry=entry_of(store, ref), token="a"))
    _lossy(proxy, lambda: far.hand_over(order.lease, PLAN))
    painting = _lossy(proxy, lambda: far.claim_paint(ref, token="b"))
    _lossy(proxy, lambda: far.renew(painting.lease, step=1))
    _lossy(proxy, lambda: far.commit(painting.lease, stored(), steps=2))
    assert proxy.lose_answers == 0
    image = store.get(ref.job_id).images[0]
    assert (image.state, image.ar_attempts, image.dit_attempts) == (S.SUCCEEDED, 1, 1)
    assert [event.type for event in store.events(ref.job_id)] == ["job.started", "image.completed", "job.completed"]
    assert client.hget(keys.STATS, "images_succeeded") == b"1"


def test_a_submit_whose_answer_is_lost_makes_one_job(link, client):
    """The client sends the same script again by itself; what it would write is there already."""
    proxy, far = link
    far.ping()
    proxy.lose_answers = 1
    submit(far)
    assert proxy.lose_answers == 0
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"
    assert client.xlen(keys.AR_REALTIME) == 1


def test_a_silent_link_costs_a_call_its_time_limit_and_no_more(link):
    proxy, far = link
    far.ping()
    proxy.mode = "silent"
    began = time.monotonic()
    with pytest.raises(Unavailable):
        far.ping()
    assert time.monotonic() - began < 10
    proxy.mode = "pass"
    proxy.reset()
    far.ping()


def test_a_reset_or_slow_link_is_not_noticed(link, store):
    proxy, far = link
    ref = _submitted(far)
    proxy.reset()
    lease = plan(far, ref)
    proxy.delay_s = 0.1
    far.hand_over(lease, PLAN)
    proxy.reset()
    far.commit(paint(far, ref), stored(), steps=2)
    assert store.get(ref.job_id).images[0].state is S.SUCCEEDED


_PICTURE = random.Random(1).randbytes(400_000)


@pytest.fixture
def shelf(servers) -> Iterator[tuple[Proxy, BlobStore, BlobStore]]:
    """Object storage by a link that can be hurt, and directly."""
    settings = servers.settings()
    with Proxy(urlsplit(settings.s3_endpoint).port) as proxy:
        far = servers.settings(s3_endpoint=f"http://127.0.0.1:{proxy.port}")
        yield proxy, BlobStore(far, timeout_s=2.0), BlobStore(settings, timeout_s=10.0)


def _put(blobs: BlobStore, key: str) -> None:
    blobs.put(key, _PICTURE, "image/png", hashlib.sha256(_PICTURE).digest())


def test_slow_object_storage_takes_a_picture_all_the_same(shelf):
    proxy, far, near = shelf
    proxy.delay_s = 0.1
    _put(far, "jobs/slow/0/1.png")
    assert near.get("jobs/slow/0/1.png") == _PICTURE
    assert far.get("jobs/slow/0/1.png") == _PICTURE


def test_an_upload_that_is_cut_leaves_nothing_and_may_be_made_again(shelf):
    proxy, far, near = shelf
    proxy.cut_request = 200_000
    with pytest.raises(Unavailable):
        _put(far, "jobs/cut/0/1.png")
    assert proxy.cut_request is None
    with pytest.raises(ImageFailed):
        near.get("jobs/cut/0/1.png")
    _put(far, "jobs/cut/0/1.png")
    assert near.get("jobs/cut/0/1.png") == _PICTURE


def test_a_download_that_is_cut_is_no_picture(shelf):
    proxy, far, near = shelf
    _put(near, "jobs/half/0/1.png")
    proxy.cut_answer = 200_000
    with pytest.raises(Unavailable):
        far.get("jobs/half/0/1.png")
    assert far.get("jobs/half/0/1.png") == _PICTURE


def test_silent_object_storage_costs_its_time_limit_and_no_more(shelf):
    proxy, far, _ = shelf
    proxy.mode = "silent"
    began = time.monotonic()
    with pytest.raises(Unavailable):
        _put(far, "jobs/silent/0/1.png")
    assert time.monotonic() - began < 3 * 2.0 + 5
    proxy.mode = "pass"
    proxy.reset()
    _put(far, "jobs/silent/0/1.png")


@pytest.mark.chaos
@pytest.mark.parametrize("role", ["ar", "dit"])
@pytest.mark.parametrize("length_s", [6.0, 60.0])
def test_a_worker_behind_a_silent_link_works_again_when_the_link_does(attacked: Attacked, role, length_s):
    """Matrix row 15: nobody closes the connections. Its images move on, and it must not stay deaf."""
    url = attacked.cluster.settings.redis_url.get_secret_value()
    try:
        with Proxy(urlsplit(url).port) as proxy:
            attacked.restart(role, **{PREFIX + "REDIS_URL": _through(url, proxy)})
            _fall_silent(attacked, proxy, role, length_s)
    finally:
        attacked.restart(role)


def _fall_silent(attacked: Attacked, proxy: Proxy, role: str, length_s: float) -> None:
    accepted = attacked.order(n=4, steps=40)
    state, done = {"ar": ("planning", 0), "dit": ("painting", 1)}[role]
    attacked.until(lambda: attacked.state(accepted) == state, state)
    pid = attacked.cluster.of(role)[0].pid
    proxy.mode = "silent"
    until = time.monotonic() + length_s
    attacked.until(lambda: time.monotonic() > until, "the end of the silence", length_s + 10)
    before = attacked.witness.progress()[done]
    proxy.mode = "pass"
    back = time.monotonic()
    attacked.until(lambda: attacked.witness.progress()[done] > before, f"a result of {role}", 120)
    took = time.monotonic() - back
    click.echo(f"{role}: a result {took:.1f} s after {length_s:g} s of silence, limit 60 s")
    assert took < 60
    assert attacked.verdict(accepted, attacked.order()) == []
    assert attacked.cluster.of(role)[0].pid == pid, "it did not need to be replaced"
