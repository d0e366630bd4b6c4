"""Dead letters: who leaves one, what it tells, that it hides what it must, and that a retry is a new job."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from app import keys, wiring
from app.cli import cli
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import ImageFailed, NotFound
from app.queues.dit_queue import DitQueue, make_celery
from app.service import Stages
from app.store import dead as dead_module
from app.store.dead import DeadLetters
from app.store.jobs import Terms
from app.store.scripts import MOST_DEAD
from tests.servers import wait_until
from tests.store.orders import PLAN, paint, parameters, place, plan, submit

S = ImageState
PROMPT = "a very private picture of a red circle on a blue background"


@pytest.fixture
def letters(client):
    return DeadLetters(client)


@pytest.fixture
def stages(settings, store, client):
    return wiring.stages(settings, client)


@pytest.fixture
def run(servers):
    def call(*arguments, status=0):
        done = CliRunner().invoke(cli, ["dead", *arguments], env=servers.environment)
        if status == 0:
            assert done.exit_code == 0, (done.output, done.exception)
        else:
            assert done.exit_code != 0 or done.exception
        return done

    return call


def _failed(store, stages, *, text="it broke", prompt=PROMPT, **terms):
    """An image whose DiT attempt met an error for good."""
    job_id = "job_" + hashlib.sha256(text.encode()).hexdigest()[:32]
    store.submit(job_id, parameters(2, prompt), Terms(**terms), metadata={"order": 7})
    ref = ImageRef(job_id, 1)
    store.hand_over(plan(store, ref, "ar-1/1-1"), PLAN)
    lease = paint(store, ref, "dit-1/3")
    try:
        raise ValueError(text)
    except ValueError:
        stages.give_up(lease, ImageFailed("dit_error", "painting failed: ValueError"))
    return ref


@pytest.mark.parametrize("state", list(ImageState))
def test_failed_images_leave_a_letter_and_others_do_not(store, letters, state):
    ref = place(store, state).ref
    assert [letter.id for letter in letters.newest(10)] == ([str(ref)] if state is S.FAILED else [])


def test_a_letter_tells_the_last_error_and_who_met_it(store, stages, letters):
    ref = _failed(store, stages, owner="key_a")
    (letter,) = letters.newest(5)
    assert (letter.id, letter.code, letter.stage, letter.attempts) == (str(ref), "dit_error", "dit", 1)
    assert (letter.worker, letter.owner, letter.traceback_code) == ("dit-1", "key_a", "dit_error")
    assert letter.traceback.rstrip().endswith("ValueError: it broke")
    assert "_failed" in letter.traceback
    assert letter == letters.get(str(ref))


def test_attempts_that_are_used_up_leave_the_last_traceback_or_say_that_there_is_none(store, stages, letters, run):
    silent = ImageRef(submit(store), 0)
    told = ImageRef(submit(store), 0)
    for attempt in range(3):
        plan(store, silent, f"ar-1/{attempt}")
        lease = plan(store, told, f"ar-2/{attempt}")
        if attempt == 0:
            stages.give_up(lease, ImageFailed("ar_error", "x", retryable=True, traceback="Traceback of the first"))
        for ref in (silent, told):
            wait_until(
                lambda ref=ref: store.get(ref.job_id).images[0].state in (S.QUEUED, S.FAILED) or not store.sweep(ref),
                what="the end of the lease",
            )
    found = {letter.id: letter for letter in letters.newest(5)}
    assert {letter.code for letter in found.values()} == {"worker_lost"}
    assert (found[str(silent)].traceback, found[str(silent)].worker) == ("", "ar-1")
    assert found[str(told)].traceback == "Traceback of the first"
    assert "ended without a word" in run("show", str(silent)).stdout
    assert "Traceback of the first" in run("show", str(told)).stdout


def test_secrets_are_never_stored_and_prompts_shown_only_on_request(store, settings, stages, letters, run):
    secret = settings.s3_secret_key.get_secret_value()
    redis_url = settings.redis_url.get_secret_value()
    bearer = "Bearer planpaint_" + "k" * 43
    text = f"no luck with {PROMPT[:40]!r} at {redis_url} by {secret} and {bearer} whsec_c2VjcmV0"
    ref = _failed(store, stages, text=text)
    stored = letters.get(str(ref)).traceback
    for hidden in (secret, redis_url.split("@")[0], "k" * 43, "whsec_"):
        assert hidden not in stored
    hidden = run("show", str(ref)).stdout + run("list").stdout + run("show", str(ref), "--json").stdout
    assert PROMPT[:20] not in hidden
    assert "no luck with" in hidden
    shown = json.loads(run("show", str(ref), "--json", "--reveal").stdout)
    assert shown["prompt"] == PROMPT
    assert PROMPT[:40] in shown["traceback"]
    assert secret not in json.dumps(shown)


def test_a_long_traceback_keeps_its_two_ends(store, stages, letters):
    ref = _failed(store, stages, text="x" * 50_000 + " the end")
    traceback = letters.get(str(ref)).traceback
    assert len(traceback) < 5_000
    assert traceback.startswith("Traceback")
    assert traceback.rstrip().endswith("the end")


# --- retry


def test_a_retry_is_a_new_job_of_the_same_request_and_is_remembered(store, stages, letters, run):
    ref = _failed(store, stages, owner="key_a", webhook_url="https://example.org/hook", ttl_ms=77_000)
    new = run("retry", str(ref)).stdout.strip()
    job, old = store.get(new), store.get(ref.job_id)
    assert (job.owner, job.webhook_url, job.ttl_ms, job.metadata) == (
        "key_a",
        "https://example.org/hook",
        77_000,
        {"order": 7},
    )
    assert job.parameters.prompt == PROMPT
    assert [image.seed for image in job.images] == [old.images[1].seed]
    assert job.images[0].state is S.PLANNED, "a plan that is stored is not made again"
    assert store.plan(ImageRef(new, 0)) == PLAN
    assert old.images[1].state is S.FAILED
    again = run("retry", str(ref), status=1)
    assert f"was retried as {new}" in str(again.exception)
    second = run("retry", str(ref), "--again", "--json")
    assert letters.get(str(ref)).retried_as == (new, json.loads(second.stdout)["job"])
    assert f"retried as {json.loads(second.stdout)['job']}" in run("list").stdout


def test_two_retries_at_once_are_one_job(settings, store, client, stages):
    ref = _failed(store, stages)
    intake = wiring.intake(settings, client, wiring.worker_blobs(settings), wiring.epoch(client))
    assert intake.repeat(ref, 1).job.id == intake.repeat(ref, 1).job.id != intake.repeat(ref, 2).job.id


def test_an_edit_is_retried_with_its_pictures_while_they_exist(settings, store, client, stages, run):
    blobs = wiring.worker_blobs(settings)
    job_id = "job_" + "e" * 32
    key = f"jobs/{job_id}/inputs/0.png"
    blobs.put(key, b"a picture", "image/png", hashlib.sha256(b"a picture").digest())
    store.submit(job_id, parameters(), Terms(), metadata={}, inputs=(key,))
    ref = ImageRef(job_id, 0)
    stages.give_up(plan(store, ref), ImageFailed("ar_error", "no"))
    new = run("retry", str(ref)).stdout.strip()
    (copied,) = store.get(new).inputs
    assert copied == f"jobs/{new}/inputs/0.png"
    assert blobs.get(copied) == b"a picture"
    blobs.delete(key)
    assert "input_missing" in str(run("retry", str(ref), "--again", status=1).exception)


# --- what is kept, and for how long


def test_nothing_of_a_deleted_job_is_kept(store, settings, client, stages, letters, run):
    ref = _failed(store, stages)
    store.cancel(ImageRef(ref.job_id, 0))
    assert wiring.retention(settings, client).delete(ref.job_id)
    assert letters.newest(5) == []
    assert client.zcard(keys.DEAD) == 0
    with pytest.raises(NotFound):
        letters.get(str(ref))
    left = [key for key in client.scan_iter() if ref.job_id.encode() in key]
    assert left == [keys.tombstone(ref.job_id).encode()]
    assert "no dead letter" in str(run("retry", str(ref), status=1).exception)


def test_the_list_is_bounded(store, client, letters):
    client.zadd(keys.DEAD, {f"job_old:{index}": index for index in range(MOST_DEAD)})
    ref = place(store, S.FAILED).ref
    assert letters.count() == MOST_DEAD
    assert client.zscore(keys.DEAD, "job_old:0") is None
    letters.bury("ar", "junk", "{}")
    assert letters.count() == MOST_DEAD
    assert str(ref) in [letter.id for letter in letters.newest(2)]


def test_letters_are_dropped_with_their_tracebacks(store, stages, client, letters, run):
    first, second = _failed(store, stages), _failed(store, stages, text="another")
    message = letters.bury("dit", "junk", "{}")
    run("drop", str(first), message)
    assert [letter.id for letter in letters.newest(5)] == [str(second)]
    assert not client.hexists(keys.image(first.job_id, 1), "traceback")
    assert not client.exists(keys.dead_message(message))
    assert store.get(first.job_id).images[1].failure.code == "dit_error"
    assert run("drop", "job_x:0", status=1)
    assert run("drop", status=2).exit_code == 2
    run("drop", "--all")
    assert letters.count() == 0


def test_a_message_whose_time_is_over_is_forgotten(client, letters, monkeypatch):
    monkeypatch.setattr(dead_module, "_MESSAGE_KEPT_MS", 1)
    letters.bury("ar", "junk", "{}")
    wait_until(lambda: letters.newest(5) == [], what="the end of the message")
    assert letters.count() == 0


# --- messages


def test_junk_on_a_stream_is_buried_and_what_it_said_is_hidden(settings, client, letters, run):
    stream = wiring.ar_stream(client, "ar-1")
    stream.ensure_groups()
    for fields in ({"nonsense": "secret words"}, {"job": "job_x", "index": "x", "schema": 1}, {"job": b"\xff"}):
        client.xadd(keys.AR_REALTIME, fields)
    client.xadd(keys.AR_REALTIME, {"job": "job_x", "index": "0", "schema": "0"})
    assert stream.read(10) == []
    assert client.xlen(keys.AR_REALTIME) == 0
    found = letters.newest(10)
    assert len(found) == 4
    assert {(letter.stage, letter.code, letter.worker) for letter in found} == {("ar", "unreadable", "ar-1")}
    hidden = "".join(run("show", letter.id).stdout for letter in found) + run("list").stdout
    assert "secret words" not in hidden
    assert "secret words" in "".join(run("show", letter.id, "--reveal").stdout for letter in found)
    assert "is a message" in str(run("retry", found[0].id, status=1).exception)


def test_publishing_needs_no_ear_for_refusals(settings, client, store):
    assert isinstance(Stages(store, DitQueue(make_celery(settings))), Stages)
