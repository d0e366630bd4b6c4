"""The event log by SSE and as JSON, on a running process where it matters."""

import json
import threading
import time

import pytest
import requests

from app import keys, wiring
from app.bench import readers
from app.bench.load import drive
from app.domain.messages import ImageRef
from tests.api.orders import finish, painting
from tests.servers import wait_until
from tests.store.orders import plan

JSON = {"Accept": "application/json"}


class Stream:
    """A reader of one event stream, on a thread of its own."""

    def __init__(self, url, **headers):
        self.answer = requests.get(url, headers=headers, stream=True, timeout=30)
        self.events, self.comments, self.ended = [], 0, threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        event = {}
        try:
            for line in self.answer.iter_lines(chunk_size=1, decode_unicode=True):
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif "data" in event:
                    self.events.append(event | {"data": json.loads(event["data"])})
                    event = {}
        except (requests.exceptions.RequestException, AttributeError):
            pass
        self.ended.set()

    def steps(self):
        return [e["data"]["data"]["image"]["step"] for e in self.events if e["event"] == "image.progress"]

    def types(self):
        return [event["event"] for event in self.events]

    def close(self):
        self.answer.close()
        self._thread.join(10)


@pytest.fixture
def new(live, client):
    def call(**fields):
        body = {"prompt": "a red circle", "size": "256x256", "steps": 12} | fields
        return requests.post(f"{live.url}/v1/jobs", json=body, timeout=10).json()

    return call


def _url(live, job):
    return f"{live.url}/v1/jobs/{job['id']}/events"


def test_a_stream_tells_the_whole_log_and_ends_with_the_job(live, new, store, settings):
    job = new(n=2, metadata={"order": 7})
    stream = Stream(_url(live, job))
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    finish(store, settings, job["id"], 1)
    store.fail(plan(store, ImageRef(job["id"], 0)), "broken", "it broke")
    assert stream.ended.wait(15)
    log = [event for event in stream.events if event["event"] != "image.progress"]
    assert [event["event"] for event in log] == ["job.started", "image.completed", "image.failed", "job.completed"]
    assert [int(event["id"]) for event in log] == [1, 2, 3, 4]
    for event in log:
        data = event["data"]
        assert (data["type"], str(data["sequence"])) == (event["event"], event["id"])
        assert data["data"]["job_id"] == job["id"]
        assert data["data"]["metadata"] == {"order": 7}
    assert log[-1]["data"]["data"]["job"]["status"] == "partial"
    as_json = requests.get(_url(live, job), headers=JSON, timeout=5).json()["data"]
    for one, other in zip(as_json, log, strict=True):
        assert one == other["data"], "every reader is told the same"


def test_a_stream_resumes_behind_the_last_event(live, new, store, settings):
    job = new(n=2)
    finish(store, settings, job["id"], 0)
    stream = Stream(_url(live, job), **{"Last-Event-ID": "1"})
    wait_until(lambda: stream.types() == ["image.completed"], what="the rest of the log")
    stream.close()
    finish(store, settings, job["id"], 1)
    again = Stream(_url(live, job), **{"Last-Event-ID": "2"})
    assert again.ended.wait(10)
    assert again.types() == ["image.completed", "job.completed"]
    last = requests.get(_url(live, job), headers={"Last-Event-ID": "4"}, timeout=5)
    assert last.status_code == 204, "a browser stops connecting"


def test_a_silent_stream_has_heartbeats(live, new):
    stream = Stream(_url(live, new()))
    wait_until(lambda: stream.comments >= 2, what="heartbeats")
    assert stream.events == []
    stream.close()


def test_progress_is_for_streams_alone_and_only_the_latest_is_told(live, new, store):
    job = new(steps=100)
    lease = painting(store, job["id"])
    stream = Stream(_url(live, job))
    wait_until(lambda: "job.started" in stream.types(), what="the stream")
    started = time.monotonic()
    for step in range(1, 61):
        store.renew(lease, step=step)
        time.sleep(0.05)
    seconds = time.monotonic() - started
    wait_until(
        lambda: any(event["data"]["data"]["image"]["step"] == 60 for event in stream.events[1:]), what="the last step"
    )
    progress = [event for event in stream.events if event["event"] == "image.progress"]
    steps = [event["data"]["data"]["image"]["step"] for event in progress]
    assert steps == sorted(set(steps))
    assert 2 <= len(steps) <= seconds + 4
    assert all("id" not in event for event in progress), "nothing to resume behind"
    stream.close()
    log = requests.get(_url(live, job), headers=JSON, timeout=5).json()["data"]
    assert [event["type"] for event in log] == ["job.started"]


def test_the_log_as_json_goes_on_from_a_sequence(http, submit, done):
    job = submit(n=2)
    done(job)
    url = f"/v1/jobs/{job['id']}/events"
    sequences = [event["sequence"] for event in http.get(url, headers=JSON).get_json()["data"]]
    assert sequences == [1, 2, 3, 4]
    assert [e["sequence"] for e in http.get(f"{url}?after=2", headers=JSON).get_json()["data"]] == [3, 4]
    assert http.get(f"{url}?after=99", headers=JSON).get_json() == {"data": []}


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("?after=-1", JSON, 422),
        ("?after=x", JSON, 422),
        ("?before=1", JSON, 422),
        ("", {"Last-Event-ID": "x"}, 422),
        ("", {"Accept": "image/png"}, 406),
    ],
)
def test_bad_readers_are_told_so(http, submit, query, headers, status):
    answer = http.get(f"/v1/jobs/{submit()['id']}/events{query}", headers=headers)
    assert (answer.status_code, answer.content_type) == (status, "application/problem+json")


def test_a_log_is_bounded_whatever_happens_to_its_job(submit, store, client):
    job = submit(n=3)
    ref = ImageRef(job["id"], 0)
    for number in range(40):
        lease = plan(store, ref, f"t{number}")
        store.renew(lease, step=number)
        store.release(lease)
    for image in job["images"]:
        store.cancel(ImageRef(job["id"], image["index"]))
    assert client.xlen(keys.events(job["id"])) == 1 + 3 + 1


def test_a_hundred_readers_are_each_told_everything(live, new, store, settings):
    jobs = [new() for _ in range(4)]
    streams = [Stream(_url(live, jobs[number % 4])) for number in range(100)]
    try:
        assert all(stream.answer.status_code == 200 for stream in streams)
        for job in jobs:
            finish(store, settings, job["id"])
        wait_until(lambda: all(stream.ended.is_set() for stream in streams), what="the end of all streams")
        assert {tuple(t for t in stream.types() if t != "image.progress") for stream in streams} == {
            ("job.started", "image.completed", "job.completed")
        }
    finally:
        for stream in streams:
            stream.close()


def test_the_api_answers_beside_a_hundred_readers(live, client, settings):
    """docker/model-runner#1041: waiting callers blocked the service.

    `planpaint bench api` asks for 100 ms. Here readers may make a GET slower, but it must not wait for them all.
    """
    ask = b"GET /v1/jobs?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    alone = drive(live.port, ask, threads=readers.CONNECTIONS, duration_s=1, expected=200)
    followed = readers.measure(live.port, settings, seconds=2, rate=None)
    assert followed.asked.refused == alone.refused == 0
    assert followed.events >= readers.READERS, "nothing moved"
    assert followed.asked.percentile_ms(50) < 30 * alone.percentile_ms(50)


def test_readers_of_a_job_share_what_is_read_of_it(live, new, store, client):
    job = new(steps=100)
    lease = painting(store, job["id"])
    streams = [Stream(_url(live, job)) for _ in range(12)]
    try:
        wait_until(lambda: all("job.started" in stream.types() for stream in streams), what="the streams")
        before = client.info("commandstats")["cmdstat_xrange"]["calls"]
        for step in range(1, 11):
            store.renew(lease, step=step)
            time.sleep(0.05)
        wait_until(
            lambda: all(stream.steps()[-1:] == [10] for stream in streams),
            what="the last step, told to each",
        )
        assert client.info("commandstats")["cmdstat_xrange"]["calls"] - before < 10 * len(streams) / 2
    finally:
        for stream in streams:
            stream.close()


def test_a_stream_outlives_a_redis_that_is_silent_for_a_moment(live, new, store, settings, client):
    job = new()
    stream = Stream(_url(live, job))
    wait_until(lambda: stream.comments, what="a heartbeat")
    # Longer than the API waits for an answer.
    client.client_pause(1500, all=True)
    assert _readiness(live) == "not_ready", "it was silent for long enough"
    wait_until(lambda: _readiness(live) == "ready", what="Redis")
    assert not stream.ended.is_set()
    finish(store, settings, job["id"])
    assert stream.ended.wait(15)
    assert stream.types() == ["job.started", "image.completed", "job.completed"]


def _readiness(live):
    body = requests.get(f"{live.url}/readyz", timeout=10).json()
    return body.get("code", body["status"])


def test_readers_are_capped_and_those_who_leave_make_room(servers, client):
    from api.application import build

    http = build(servers.settings(sse_readers=1, sse_heartbeat_s=0.1)).test_client()
    job = http.post("/v1/jobs", json={"prompt": "x", "size": "32x32"}).get_json()
    url = f"/v1/jobs/{job['id']}/events"
    first = http.get(url, buffered=False)
    assert first.status_code == 200
    refused = http.get(url)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "too_many_readers")
    assert int(refused.headers["Retry-After"]) <= 120
    first.close()
    second = http.get(url, buffered=False)
    assert second.status_code == 200
    second.close()
    assert http.get(url, headers=JSON).status_code == 200, "JSON is not capped"


def test_streams_end_when_their_job_is_removed(live, new, store, settings, client):
    job = new()
    stream = Stream(_url(live, job))
    finish(store, settings, job["id"])
    assert stream.ended.wait(10)
    requests.delete(f"{live.url}/v1/jobs/{job['id']}", timeout=10)
    assert requests.get(_url(live, job), timeout=5).status_code == 410


def test_events_stay_small_whatever_their_job_holds(submit, store, settings, http, client):
    """Standard Webhooks asks for less than 20 kB."""
    job = submit(prompt="猫" * 300, n=10, metadata={"k": "é" * 4000}, webhook_url="http://127.0.0.1:1/")
    for index in range(10):
        store.fail(plan(store, ImageRef(job["id"], index), f"t{index}"), "broken", "x" * 5000)
    log = store.events(job["id"])
    from app.views import event_view
    from workers.courier import _json

    sizes = [len(_json(event_view(event, store.get(job["id"]), "https://planpaint.example")).encode()) for event in log]
    assert max(sizes) < 20_000
    assert wiring.outbox(settings, client).take(99, hold_ms=1)
