"""`planpaint jobs`: the newest of all owners, and those that do not get on."""

import json

import pytest
from click.testing import CliRunner

from app import keys
from app.cli import cli
from app.domain.access import USUAL_SCOPES, LimitChanges
from app.domain.estimate import Load
from app.domain.job import Image, Job
from app.domain.sizes import Grid
from app.domain.states import ImageState
from app.domain.stuck import Place, is_stuck, waits_for
from app.store.api_keys import ApiKeys
from app.store.workers import WorkerInfo, WorkerRegistry
from tests.servers import wait_until
from tests.store.orders import parameters, place, submit

S = ImageState
NOW = 1_000_000


@pytest.fixture
def run(servers):
    def call(*arguments):
        done = CliRunner().invoke(cli, ["jobs", *arguments, "--json"], env=servers.environment)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    return call


def test_the_newest_of_all_owners_come_first_without_their_prompts(store, client, run, servers):
    key, _ = ApiKeys(client).create("studio", USUAL_SCOPES, LimitChanges())
    ids = []
    for owner in ("anybody", key.id, "anybody", key.id):
        ids.append(submit(store, 3, owner=owner))
        before = client.time()
        wait_until(lambda before=before: client.time()[1] // 1000 != before[1] // 1000, what="the next millisecond")
    found = run("--limit", "3")
    assert [job["id"] for job in found["data"]] == ids[:0:-1]
    assert found["has_more"]
    assert found["data"][0] | {"owner": key.id, "images": "3 queued", "status": "queued"} == found["data"][0]
    text = CliRunner().invoke(cli, ["jobs"], env=servers.environment).stdout
    assert len(text.splitlines()) == 4
    assert "red circle" not in text + json.dumps(found)


def test_what_ended_or_gets_on_is_not_stuck(store, client, run):
    WorkerRegistry(client).beat(WorkerInfo("ar-1", "ar", 1, "h", "cpu", "ready"))
    for state in S:
        place(store, state)
    assert run("--stuck")["data"] == []


def test_images_beyond_their_time_tell_what_they_wait_for(store, client, run):
    placed = {state: place(store, state).ref for state in (S.QUEUED, S.PLANNING, S.PLANNED, S.SUCCEEDED)}
    for ref in placed.values():
        for field in ("queued_at", "planning_at", "planned_at"):
            client.hset(keys.image(ref.job_id, 0), field, 1)
    client.zadd(keys.DUE, {str(placed[S.PLANNING]): 1})
    client.zadd(keys.DUE, {str(placed[state]): 10**14 for state in (S.QUEUED, S.PLANNED)})
    found = {line["image"]: line for line in run("--stuck", "--margin", "2")["data"]}
    assert set(found) == {str(placed[state]) for state in (S.QUEUED, S.PLANNING, S.PLANNED)}
    waits = {state: found[str(placed[state])]["waits_for"] for state in (S.QUEUED, S.PLANNING, S.PLANNED)}
    assert waits[S.QUEUED].startswith("a worker of ar: none")
    assert waits[S.PLANNED].startswith("a worker of dit: none")
    assert waits[S.PLANNING].startswith("a sweeper: its lease ended")


# --- the rule by itself

JOB = Job("job_x", parameters(), 0, ())
LOAD = Load(ar_workers=2, dit_workers=1, ar_ms=1000, ar_ms_per_unit=1, dit_ms=2000, dit_ms_per_unit=0.1, images=9)


def _place(state, *, since=NOW, due=NOW + 5000, ahead=None, worker="", planned=False):
    grid = Grid(8, 8) if planned else None
    return Place(Image(0, state, 7, step=3, prior_grid=grid), since, due, ahead, worker)


@pytest.mark.parametrize(
    ("place_", "stuck"),
    [
        (_place(S.QUEUED, since=NOW - 12_000), False),
        (_place(S.QUEUED, since=NOW - 14_000), True),
        (_place(S.QUEUED, since=NOW - 14_000, ahead=10), False),
        (_place(S.PLANNED, since=NOW - 21_000), True),
        (_place(S.PLANNED, since=NOW - 21_000, ahead=1), False),
        (_place(S.PLANNING, since=NOW - 11_000), False),
        (_place(S.PLANNING, since=NOW - 12_000), True),
        (_place(S.PAINTING, since=NOW - 10_300, planned=True), False),
        (_place(S.PAINTING, since=NOW - 11_000, planned=True), True),
        (_place(S.PAINTING, due=NOW - 9_000, planned=True), False),
        (_place(S.PAINTING, due=NOW - 11_000, planned=True), True),
        (_place(S.CANCELING, due=None), True),
    ],
)
def test_an_image_is_stuck_beyond_the_margin_or_five_times_the_usual(place_, stuck):
    assert is_stuck(place_, JOB, LOAD, NOW, 10_000) is stuck


def test_what_it_waits_for_is_one_sentence():
    assert waits_for(_place(S.PAINTING, worker="dit-1"), LOAD, NOW) == "dit-1, step 3; the lease ends in 5 s"
    assert waits_for(_place(S.QUEUED, ahead=4), LOAD, NOW) == "one of 2 workers of ar, 4 images before it"
    assert waits_for(_place(S.PLANNED), Load(dit_workers=0), NOW).startswith("a worker of dit: none")
    assert "planpaint check" in waits_for(_place(S.QUEUED, due=None), LOAD, NOW)
