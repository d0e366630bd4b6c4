import pytest

from app.bench import readers
from app.bench.api import by_turns, servers
from app.bench.load import drive


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with servers(tmp_path_factory.mktemp("api")) as running:
        yield running


def test_the_api_answers_beside_a_hundred_readers(found):
    """docker/model-runner#1041: those who waited kept all others out.

    `planpaint bench api` asks for 100 ms. Here the readers may make a GET slower, but not wait for them.
    """
    ask = b"GET /v1/jobs?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    alone = drive(found.ours, ask, threads=4, duration_s=1, rate=50, expected=200)
    followed = readers.measure(found.ours, found.settings, seconds=3)
    assert followed.asked.refused == alone.refused == 0
    assert followed.events >= readers.READERS, "nothing moved"
    assert followed.asked.percentile_ms(50) < 30 * alone.percentile_ms(50)


def test_a_submit_costs_little_beside_a_bare_append(found):
    """A ratio of neighbouring blocks, of which the best counts: other work on the machine must not fail it.

    Measured on a machine that does nothing else it is above 0.5, which `planpaint bench api` asks for.
    """
    pairs = by_turns(found.ours, found.bare, blocks=6, block_s=0.5)
    assert all(mine.refused == theirs.refused == 0 for mine, theirs in pairs)
    assert max(mine.by_second / theirs.by_second for mine, theirs in pairs) >= 0.3
