"""/v1/jobs/{id}/events: the job's event log, as a stream of server-sent events or as JSON."""

import json
import time
from collections.abc import Generator, Iterator

from flask import Blueprint, Response, jsonify, request
from flask_openapi import APIBlueprint

from api import headers
from api.access import caller
from api.answers import EventsOut
from api.feeds import Feed
from api.gate import Caller
from api.jobs import MISSING, find_job, jobs_tag
from api.parts import Parts, base_url, current
from api.problems import Problem, problem
from api.schemas import EventQuery, JobPath
from api.stopping import STOPPING
from app.domain.job import Job
from app.domain.states import TERMINAL
from app.errors import NotFound, Unavailable
from app.views import event_view, progress_view

blueprint: Blueprint = APIBlueprint("events", __name__, url_prefix="/v1/jobs", abp_tags=[jobs_tag])

#: A stream tells the progress of images at most so often, seconds.
_PROGRESS_S = 1.0
#: Redis may be away for so long before a stream ends, seconds; its reader then connects again, and resumes.
_PATIENCE_S = 10.0
#: Milliseconds after which a browser connects again.
_RECONNECT_MS = 2000


@blueprint.get(
    "/<job_id>/events",
    summary="Follow a job",
    responses=MISSING | {"200": EventsOut, "204": None, "406": Problem, "422": Problem},
)
def events(path: JobPath, query: EventQuery) -> Response:
    """The log as server-sent events, live until the job ends; as JSON for those who accept only that.

    Streams resume behind `Last-Event-ID`. `image.progress` is told to streams alone and is no line of the log.
    """
    job = find_job(path.job_id)
    after = headers.sequence_of(query.after, "after")
    kinds = ["text/event-stream", "application/json"]
    kind = request.accept_mimetypes.best_match(kinds) if request.accept_mimetypes else kinds[0]
    if kind == "application/json":
        found = current().store.events(job.id, after)
        return jsonify({"data": [event_view(event, job, base_url()) for event in found]})
    if kind is None:
        return problem(406, "not_acceptable", "Not acceptable", "this can be text/event-stream or application/json")
    return _stream(job, max(after, headers.sequence_of(request.headers.get("Last-Event-ID"), "Last-Event-ID")))


def _stream(job: Job, after: int) -> Response:
    if job.done and not current().store.events(job.id, after):
        # A browser would connect for ever; this tells it not to.
        return Response(status=204)
    if not current().readers.enter():
        busy = problem(429, "too_many_readers", "Too many readers", "this process follows as many jobs as it may")
        busy.headers["Retry-After"] = "5"
        return busy
    follower = _Follower(current(), caller(), job, after, base_url())
    response = Response(follower, content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    # A buffering proxy would hold the events back.
    response.headers["X-Accel-Buffering"] = "no"
    return response


class _Follower:
    """One stream. It keeps nothing but the last sequence and steps that it sent: all else is read when it is due.

    Leaves the count of readers when the server closes it, also when it was never begun.
    """

    def __init__(self, parts: Parts, reader: Caller, job: Job, after: int, base: str) -> None:
        self._parts = parts
        self._reader = reader
        self._job = job
        self._after = after
        self._base = base
        self._steps: dict[int, tuple[str, int]] = {}
        self._progress_at = float("-inf")
        self._closed = False
        self._lines = self._follow()

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lines.close()
            self._parts.readers.leave()

    def _follow(self) -> Generator[str, None, None]:
        settings = self._parts.settings
        ends_at = time.monotonic() + settings.sse_max_s
        yield f"retry: {_RECONNECT_MS}\n\n"
        silent_since = heard_at = time.monotonic()
        with self._parts.changes.watch(self._job.id) as watch, self._parts.feeds.of(self._job.id) as feed:
            while True:
                text = ""
                try:
                    if not self._parts.gate.still_knows(self._reader):
                        return
                    text = self._news(feed, watch.changed_at)
                    heard_at = time.monotonic()
                except NotFound:
                    # Its reader connects again, and learns why.
                    return
                except Unavailable:
                    if time.monotonic() - heard_at > _PATIENCE_S:
                        return
                now = time.monotonic()
                if text:
                    yield text
                    silent_since = now
                elif now - silent_since >= settings.sse_heartbeat_s:
                    yield ": still here\n\n"
                    silent_since = now
                # A reader connects again, to a process that stays.
                if self._job.done or now >= ends_at or STOPPING.is_set():
                    return
                pause = min(silent_since + settings.sse_heartbeat_s, ends_at) - now
                watch.wait(max(0.01, min(pause, _PROGRESS_S) if self._steps else pause))

    def _news(self, feed: Feed, changed_at: float) -> str:
        found = feed.events(changed_at, self._after)
        tells_progress = time.monotonic() - self._progress_at >= _PROGRESS_S
        if not (found or tells_progress):
            return ""
        job = feed.job(changed_at)
        if job.done:
            # It may have ended between the two reads; from now on the log is whole.
            found = feed.events(time.monotonic(), self._after)
        # Not before: a stream whose job is done ends.
        self._job = job
        text = ""
        for event in found:
            self._after = event.sequence
            data = json.dumps(event_view(event, self._job, self._base), ensure_ascii=False)
            text += f"id: {event.sequence}\nevent: {event.type}\ndata: {data}\n\n"
        return text + self._progress() if tells_progress else text

    def _progress(self) -> str:
        """Progress since the last time, the latest of each image only."""
        text = ""
        now_ms = round(time.time() * 1000)
        for image in self._job.images:
            seen = (image.stage, image.step)
            if image.state in TERMINAL or self._steps.get(image.index) == seen or image.step == 0:
                continue
            self._steps[image.index] = seen
            data = json.dumps(progress_view(self._job, image, self._after, now_ms), ensure_ascii=False)
            text += f"event: image.progress\ndata: {data}\n\n"
        if text:
            self._progress_at = time.monotonic()
        return text
