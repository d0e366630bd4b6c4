import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.job import SEED_LIMIT, image_seed, new_job_id
from app.domain.messages import DitTask, Event, ImageRef
from app.domain.prior import PriorTokens, pack_all, unpack_all
from app.domain.sizes import Grid
from app.queues.dit_queue import parse_task


@given(st.integers(0, 10))
def test_image_refs_read_back(index):
    ref = ImageRef(new_job_id(), index)
    assert ImageRef.parse(str(ref)) == ref


@given(st.integers(1, 20), st.integers(1, 20), st.randoms())
def test_prior_tokens_read_back_and_take_two_bytes_each(height, width, random):
    prior = PriorTokens(Grid(height, width), tuple(random.randrange(65536) for _ in range(height * width)))
    assert PriorTokens.unpack(prior.grid, prior.pack()) == prior
    assert len(prior.pack()) == 2 * height * width


def test_prior_tokens_refuse_a_wrong_count():
    with pytest.raises(ValueError, match="takes 4 ids, got 3"):
        PriorTokens(Grid(2, 2), (1, 2, 3))


def test_seeds_wrap():
    assert image_seed(SEED_LIMIT - 1, 1) == 0
    assert image_seed(5, 3) == 8


def test_ids_are_unique_and_event_ids_have_no_dot():
    ids = {new_job_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert "." not in Event(ids.pop(), 3, "image.completed", 0, 1).id


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"job_id": "j", "schema": 1},
        {"job_id": None, "index": "x", "schema": 1},
        {"job_id": "j", "index": 0, "schema": []},
    ],
)
def test_malformed_dit_hints_are_refused(values):
    with pytest.raises(ValueError, match="not those of a hint"):
        parse_task(values)


def test_newer_dit_hints_are_left():
    assert parse_task({"job_id": "j", "index": 0, "schema": 2}) is None


def test_a_dit_hint_reads_back():
    assert parse_task({"job_id": "job_1", "index": 2, "schema": 1}) == DitTask("job_1", 2)


def test_distinct_share_tells_a_collapsed_plan():
    assert PriorTokens(Grid(2, 2), (1, 1, 1, 1)).distinct_share() == 0.25
    assert PriorTokens(Grid(2, 2), (1, 2, 3, 4)).distinct_share() == 1.0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4))
def test_several_grids_read_back_from_one_field(grids):
    priors = tuple(PriorTokens(Grid(h, w), tuple(range(h * w))) for h, w in grids)
    assert unpack_all(pack_all(priors)) == priors
