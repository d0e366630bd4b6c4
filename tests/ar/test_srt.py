import pytest
import torch
from werkzeug import Response

from app.ar.engine import ArEngine
from app.ar.request import ArFailure, ArResult
from app.ar.srt import SrtEngine
from app.errors import BrokenCheckpoint, Unavailable
from tests.ar.plans import finish, plan, request
from tests.ar.srt_server import SrtServer


@pytest.fixture(scope="module")
def server(tiny_checkpoint):
    return SrtServer(tiny_checkpoint)


@pytest.fixture
def engine(server, tiny_checkpoint, httpserver):
    server.batches.clear()
    server.fault, server.change = lambda body: None, lambda answers: answers
    httpserver.expect_request("/generate", method="POST").respond_with_handler(server.generate)
    return SrtEngine.load(
        tiny_checkpoint, httpserver.url_for("/"), slots=4, batches=2, max_prompt_tokens=200, timeout_s=30.0
    )


def _mixed():
    return [
        request("a", temperature=0),
        request("b", size="128x64", prompt="another", temperature=0),
        request("c", size="33x100", temperature=0),
    ]


def test_a_batch_of_any_sizes_is_one_call_and_equals_the_engine_here(engine, server, tiny_checkpoint):
    here = ArEngine.load(
        tiny_checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=4,
        max_prompt_tokens=200,
        max_pixels=128 * 128,
    )
    assert plan(engine, *_mixed()) == plan(here, *_mixed())
    assert server.batches == [3]


def test_sampling_follows_the_seed(engine):
    one, again, other = (plan(engine, request("a", seed=seed))["a"] for seed in (1, 1, 2))
    assert one == again != other


def test_newcomers_go_out_while_others_are_in_flight(engine, server):
    assert engine.admit([request("a", temperature=0)]) == []
    engine._send()
    assert engine.admit([request("b", temperature=0), request("c", temperature=0)]) == []
    assert engine.free_slots == 1
    assert set(finish(engine)) == {"a", "b", "c"}
    assert sorted(server.batches) == [1, 2]
    assert engine.free_slots == 4


@pytest.mark.parametrize(
    "bend",
    [
        lambda ids: ids[:-1],
        lambda ids: [],
        lambda ids: [*ids[:-1], 16_400],
        lambda ids: [*ids[:-1], -1],
        lambda ids: [*ids[:-1], "x"],
    ],
)
def test_short_or_wrong_ids_are_errors(engine, server, bend):
    server.change = lambda answers: [{"output_ids": bend(item["output_ids"])} for item in answers]
    engine.admit([request("a", temperature=0)])
    (failure,) = finish(engine).values()
    assert isinstance(failure, ArFailure)
    assert (failure.code, failure.retryable) == ("srt_error", True)


@pytest.mark.parametrize(
    "change", [lambda answers: answers[:-1], lambda answers: answers[0], lambda answers: {}, lambda answers: None]
)
def test_a_wrong_number_of_answers_is_an_error_and_one_object_is_a_row(engine, server, change):
    server.change = lambda answers: change(answers) if len(answers) > 1 else answers[0]
    engine.admit(_mixed()[:2])
    assert all(isinstance(item, ArResult) for item in finish(engine).values())
    assert server.batches == [2, 1, 1]


def test_one_poisonous_row_does_not_take_the_others_with_it(engine, server):
    def fault(body):
        return Response(status=500) if any(len(ids) > 100 for ids in body["input_ids"]) else None

    server.fault = fault
    engine.admit([*_mixed(), request("bad", prompt="x" * 120, temperature=0)])
    ended = finish(engine)
    assert {key for key, item in ended.items() if isinstance(item, ArFailure)} == {"bad"}


def test_a_row_taken_out_while_its_batch_is_tried_again_is_not_sent(engine, server):
    server.fault = lambda body: Response(status=500) if len(body["input_ids"]) > 1 else None
    engine.admit([request(key, temperature=0) for key in "abcd"])
    while not engine._again:
        engine.step()
    engine.evict("d")
    assert set(finish(engine)) == {"a", "b", "c"}
    assert server.batches == [4, 1, 1, 1]


def test_a_server_that_is_away_fails_rows_that_may_be_retried(tiny_checkpoint):
    engine = SrtEngine.load(
        tiny_checkpoint, "http://127.0.0.1:1", slots=2, batches=1, max_prompt_tokens=200, timeout_s=1.0
    )
    with pytest.raises(Unavailable):
        engine.check_health()
    engine.admit([request("a")])
    (failure,) = finish(engine).values()
    assert failure.retryable


def test_an_evicted_row_is_not_reported(engine):
    engine.admit([request("a", temperature=0), request("b", temperature=0)])
    engine.evict("a")
    engine._send()
    engine.evict("b")
    engine.evict("nobody")
    assert not engine.running
    assert engine.step() == []


def test_a_prompt_that_is_too_long_is_refused_before_it_is_sent(engine, server):
    (failure,) = engine.admit([request("a", prompt="x" * 400)])
    assert failure.code == "prompt_too_long"
    assert not engine.running
    assert server.batches == []


def test_health(engine, httpserver):
    httpserver.expect_request("/health").respond_with_data(status=503)
    with pytest.raises(Unavailable):
        engine.check_health()
    httpserver.clear()
    httpserver.expect_request("/health").respond_with_data("ok")
    engine.check_health()


def test_a_checkpoint_without_a_codebook_size_is_broken(tiny_checkpoint, tmp_path):
    (tmp_path / "processor").symlink_to(tiny_checkpoint.part("processor"))
    with pytest.raises(BrokenCheckpoint, match="codebook"):
        SrtEngine.load(
            type(tiny_checkpoint)(tmp_path), "http://x", slots=1, batches=1, max_prompt_tokens=9, timeout_s=1.0
        )
