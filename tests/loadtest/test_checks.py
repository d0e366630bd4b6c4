"""The load test's checks let pass what is right, and refuse what is not."""

from copy import deepcopy
from dataclasses import replace
from io import BytesIO

import pytest

from app.bench.world import draw, parse
from loadtest import checks, pictures
from loadtest.checks import CheckFailed
from loadtest.event_log import EventLog, check_progress
from loadtest.orders import OrderBook
from tests.loadtest.made import JOB_ID, ORDER, file_of, image_of, job_of, log_of, quiet

ODD = "a yellow square on a blue background"


def test_a_right_job_passes():
    checks.job_record(ORDER, job_of(), JOB_ID)
    checks.ended(ORDER, job_of())
    canceled = image_of(ORDER, 1, status="canceled", content_url=None, step=3)
    checks.ended(ORDER, job_of(status="canceled", images=[image_of(), canceled]), ("canceled",))


def _look(job):
    checks.job_record(ORDER, job, JOB_ID)
    checks.ended(ORDER, job)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (job_of(images=[image_of(seed=7), image_of(ORDER, 1)]), "seed of image 0"),
        (job_of(images=[image_of(), image_of(ORDER, 1, seed=2**32)]), "seed of image 1"),
        (job_of(images=[image_of()]), "number of images"),
        (job_of(images=[image_of(), image_of()]), "index"),
        (job_of(images=[image_of(width=128), image_of(ORDER, 1)]), "size of image 0"),
        (job_of(images=[image_of(step=11), image_of(ORDER, 1)]), "last step"),
        (job_of(images=[image_of(content_type="image/webp"), image_of(ORDER, 1)]), "content type"),
        (job_of(images=[image_of(content_url=None), image_of(ORDER, 1)]), "without a picture"),
        (job_of(images=[image_of(status="failed"), image_of(ORDER, 1)]), "picture of image 0"),
        (job_of(parameters=job_of()["parameters"] | {"seed": 1}), "seed is 1"),
        (job_of(parameters=job_of()["parameters"] | {"size": "256x128"}), "size"),
        (job_of(parameters=job_of()["parameters"] | {"output_format": "jpeg"}), "output_format"),
        (job_of(metadata={}), "metadata"),
        (job_of(status="running"), "completed_at"),
        (job_of(status="canceled"), "not succeeded"),
        (job_of(status="done"), "status"),
        (job_of(id="job_" + "6" * 32), "id"),
    ],
)
def test_a_wrong_job_is_refused(job, says):
    with pytest.raises(CheckFailed, match=says):
        _look(job)


def test_a_job_that_calls_itself_succeeded_over_a_canceled_image_is_refused():
    images = [image_of(), image_of(ORDER, 1, status="canceled", content_url=None)]
    with pytest.raises(CheckFailed, match="canceled"):
        checks.ended(ORDER, job_of(images=images))


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
def test_a_right_file_passes(output_format):
    for order in (replace(ORDER, output_format=output_format), quiet(replace(ORDER, output_format=output_format))):
        data = file_of(order, 1)
        picture = pictures.check_file(order, JOB_ID, image_of(order, 1, data), f"image/{output_format}", data)
        pictures.check_drawing(order, picture)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (replace(ORDER, width=128), "size of the picture"),
        (replace(ORDER, seed=5), "the seed in the picture's file"),
        (replace(ORDER, prompt="a cat"), "the prompt in the picture's file"),
        (quiet(), "say nothing"),
        (replace(ORDER, output_format="webp"), "content type"),
    ],
)
def test_a_file_of_another_order_is_refused(order, says):
    data = file_of()
    with pytest.raises(CheckFailed, match=says):
        pictures.check_file(order, JOB_ID, image_of(ORDER, 0, data), "image/png", data)


def test_a_file_of_another_job_cut_short_or_changed_is_refused():
    data = file_of()
    for other, says in ((file_of(job_id="job_" + "6" * 32), "the job in"), (data[:-40], "no whole picture")):
        with pytest.raises(CheckFailed, match=says):
            pictures.check_file(ORDER, JOB_ID, image_of(ORDER, 0, other), "image/png", other)
    with pytest.raises(CheckFailed, match="sha256"):
        pictures.check_file(ORDER, JOB_ID, image_of(ORDER, 0, data), "image/png", data[:-1] + b"x")


def test_a_picture_of_another_prompt_is_refused():
    data = file_of(shown=ODD)
    picture = pictures.check_file(ORDER, JOB_ID, image_of(ORDER, 0, data), "image/png", data)
    with pytest.raises(CheckFailed, match="wrong: colour, shape"):
        pictures.check_drawing(ORDER, picture)


def test_a_thumbnail_must_have_the_picture_s_shape():
    def webp(*size: int) -> bytes:
        file = BytesIO()
        draw(parse(ODD), size).save(file, "webp")
        return file.getvalue()

    order = replace(ORDER, width=512, height=256)
    pictures.check_thumbnail(order, "image/webp", webp(256, 128))
    for data in (webp(512, 256), webp(256, 256), b""):
        with pytest.raises(CheckFailed):
            pictures.check_thumbnail(order, "image/webp", data)


def test_equal_orders_have_equal_pictures_and_others_never():
    gallery, one, other = pictures.Gallery(), image_of(data=b"a"), image_of(data=b"b")
    gallery.add(quiet(), JOB_ID, one)
    gallery.add(quiet(), "job_" + "6" * 32, one)
    with pytest.raises(CheckFailed, match="sha256"):
        gallery.add(quiet(), JOB_ID, other)
    with pytest.raises(CheckFailed, match="made from"):
        gallery.add(replace(quiet(), seed=3), JOB_ID, one)
    with pytest.raises(CheckFailed, match="made from"):
        gallery.add(ORDER, JOB_ID, one)


# --- events


def _told(events, *, in_order=True):
    log = EventLog(JOB_ID, in_order=in_order)
    for event in events:
        log.add(event)
    return log


def test_a_right_log_passes_and_webhooks_may_come_in_any_order():
    log = _told(log_of())
    assert log.complete
    log.check(ORDER, ("succeeded",))
    one, two, three, four = log_of()
    late = _told([two, four, one], in_order=False)
    assert not late.complete
    late.add(three)
    late.check(ORDER)
    assert late.events == log_of()


def _spoiled(number, **fields):
    events = deepcopy(log_of())
    events[number] |= fields
    return events


def _of_another_job():
    events = deepcopy(log_of())
    events[2]["data"]["job_id"] = "job_" + "6" * 32
    return events


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([*log_of()[:2], log_of()[1]], "told twice"),
        ([log_of()[0], *log_of()[2:]], "sequence"),
        ([*log_of()[::-1]], "sequence"),
        ([*log_of(), _spoiled(1, sequence=5)[1]], "behind the end"),
        (_spoiled(0, type="job.begun"), "type"),
        (_spoiled(0, sequence=0), "sequence"),
        (_of_another_job(), "job of an event"),
    ],
)
def test_what_a_stream_must_not_tell_is_refused(events, says):
    with pytest.raises(CheckFailed, match=says):
        _told(events)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([log_of()[1], log_of()[1]], "told twice"),
        ([log_of()[3], _spoiled(1, sequence=5)[1]], "behind the end"),
        ([_spoiled(1, sequence=5)[1], log_of()[3]], "highest sequence"),
    ],
)
def test_what_webhooks_must_not_tell_is_refused(events, says):
    with pytest.raises(CheckFailed, match=says):
        _told(events, in_order=False)


def _with(number, **fields):
    """A log in which one image event tells something else of its image."""
    events = deepcopy(log_of())
    events[number]["data"]["image"] |= fields
    return events


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (log_of()[:3], "came only"),
        (_with(1, index=1, seed=0), "images whose end"),
        (_with(1, seed=1), "seed"),
        (_with(1, status="failed", content_url=None), "status"),
        (_spoiled(1, timestamp="2025-01-01T00:00:00.000Z"), "timestamps"),
        (_spoiled(1, type="job.started"), "job.started"),
        (_spoiled(3, data=log_of()[3]["data"] | {"metadata": {}}), "metadata"),
    ],
)
def test_a_log_that_is_not_whole_or_tells_wrong_things_is_refused(events, says):
    with pytest.raises(CheckFailed, match=says):
        _told(events).check(ORDER, ("succeeded",))


def test_progress_must_be_of_the_job_and_within_its_steps():
    image = {"index": 1, "step": 3, "steps": 12}
    event = {"type": "image.progress", "sequence": 2, "data": {"job_id": JOB_ID, "image": image}}
    check_progress(ORDER, JOB_ID, 2, event)
    for wrong in ({"step": 13}, {"step": 0}, {"index": 2}, {"steps": 6}):
        spoiled = event | {"data": {"job_id": JOB_ID, "image": image | wrong}}
        with pytest.raises(CheckFailed):
            check_progress(ORDER, JOB_ID, 2, spoiled)
    with pytest.raises(CheckFailed, match="sequence"):
        check_progress(ORDER, JOB_ID, 3, event)


# --- refusals and orders

REFUSAL = {"status": 422, "code": "invalid_input", "title": "t", "detail": "d", "errors": [{"pointer": "/n"}]}


@pytest.mark.parametrize(
    "wrong", [{"status": 400}, {"code": "gone"}, {"detail": ""}, {"errors": []}, {"errors": [{"pointer": "/x"}]}]
)
def test_a_refusal_must_say_what_is_wrong_and_where(wrong):
    checks.problem("application/problem+json", REFUSAL, 422, "invalid_input", "/n")
    with pytest.raises(CheckFailed):
        checks.problem("application/problem+json", REFUSAL | wrong, 422, "invalid_input", "/n")
    with pytest.raises(CheckFailed, match="content type"):
        checks.problem("text/html", REFUSAL, 422, "invalid_input", "/n")


def test_every_order_has_its_own_number_and_some_are_asked_for_again():
    book = OrderBook("r", 1)
    orders = [book.draw() for _ in range(300)]
    assert len({order.number for order in orders}) == 300
    assert {order.output_format for order in orders} == {"png", "jpeg", "webp"}
    assert any(order.judged for order in orders)
    assert any(order.image_seed(order.n - 1) < order.seed for order in orders), "seeds that begin again at 0"
    silent = [(order.prompt, order.seed) for order in orders if order.steps == 2 and order.n == 2 and order.seed < 3]
    assert len(set(silent)) < len(silent)
    assert all(isinstance(order.body()["metadata"]["order"], str) for order in orders)
