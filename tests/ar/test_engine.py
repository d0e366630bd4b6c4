import gc
import random
import resource

import pytest
import torch

from app.ar.engine import ArEngine
from app.ar.request import ArFailure
from app.ar.slots import most_tokens
from app.domain.sizes import Size
from tests.ar.plans import alone, edit, finish, plan, request
from tests.edits import noise

PROMPT = 'a red circle on a white background with the text "HI"'
SIZES = ["256x256", "256x320", "192x96", "300x200"]


@pytest.mark.parametrize(("name", "size"), [("demo", "300x200"), *(("tiny", size) for size in SIZES)])
def test_greedy_ids_are_those_of_generate(name, size, engines, references):
    planned = plan(engines[name], request("a", prompt=PROMPT, size=size, temperature=0))
    assert planned["a"] == references[name].greedy(PROMPT, Size.parse(size))


MIXED = [
    request("small", prompt="a", size="32x32", seed=1),
    request("square", prompt=PROMPT, size="128x128", seed=2),
    request("wide", prompt="a small green star above a big blue triangle, in the snow", size="256x64", seed=3),
    request("tall", prompt="猫", size="40x200", seed=4, temperature=5.0, top_p=1.0, top_k=100),
    request("greedy", prompt=PROMPT, size="128x96", temperature=0),
    request("long", prompt="star " * 40, size="64x64", seed=6, top_p=0.99, temperature=1.5),
]


def test_a_row_has_the_same_ids_alone_and_among_others(engines):
    """Rows of any size and prompt, joining at different steps, in slots that others used, with some taken out."""
    engine = engines["tiny"]
    expected = alone(engine, MIXED)
    assert plan(engine, *MIXED) == expected
    draw = random.Random(1)
    waiting, planned = [*MIXED, *(request(f"stopped {i}", seed=i) for i in range(3))], {}
    draw.shuffle(waiting)
    while waiting or engine.running:
        if waiting and engine.free_slots and draw.random() < 0.05:
            assert engine.admit([waiting.pop()]) == []
        planned |= {item.key: item.prior.ids for item in engine.step()}
        for key in engine.running:
            if key.startswith("stopped") and draw.random() < 0.02:
                engine.evict(key)
    assert {key: planned[key] for key in expected} == expected


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_a_rows_logits_are_the_same_bits_in_any_company(name, engines, monkeypatch):
    """Stricter than the same ids: it would take thousands of pictures to see a draw flipped by a last bit."""
    engine, seen = engines[name], []
    decode = engine._runner._step

    def spy(*given):
        logits, short = decode(*given)
        seen.append(logits[engine.running.index("a")].clone())
        return logits, short

    monkeypatch.setattr(engine._runner, "_step", spy)
    engine.admit([request("a")])
    for _ in range(60):
        engine.step()
    expected = seen.copy()
    engine.evict("a")
    seen.clear()
    monkeypatch.undo()
    engine.admit([request("b", size="300x200", prompt="long " * 40), request("c")])
    for _ in range(20):
        engine.step()
    monkeypatch.setattr(engine._runner, "_step", spy)
    engine.admit([request("d", prompt=""), request("a")])
    for _ in range(20):
        engine.step()
    engine.evict("b")  # "a" moves into its slot
    assert engine.running[0] == "a"
    for _ in range(20):
        engine.step()
    engine.admit([request("e", seed=1), request("f", prompt="long " * 45)])
    for _ in range(20):
        engine.step()
    assert torch.equal(torch.stack(seen), torch.stack(expected))


@pytest.fixture(scope="module")
def chunked(tiny_checkpoint):
    """An engine that reads prompts 32 tokens at a time."""
    return ArEngine.load(
        tiny_checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=6,
        max_prompt_tokens=256,
        max_pixels=256 * 256,
        prefill_chunk=32,
    )


def test_a_prompt_that_is_read_in_parts_has_the_ids_of_generate(chunked, references):
    """Alone and beside running rows, with others that come and are taken out while its prompt is read."""
    prompt, size = "star " * 40, Size.parse("96x64")
    expected = references["tiny"].greedy(prompt, size)
    long = request("long", prompt=prompt, size=str(size), temperature=0)
    assert plan(chunked, long) == {"long": expected}
    others = [request(str(seed), seed=seed, size="64x96") for seed in range(3)]
    alone_ids = alone(chunked, others)
    chunked.admit(others[:2])
    for _ in range(9):
        chunked.step()
    chunked.admit([request("taken out", prompt="moon " * 40), long, others[2]])
    chunked.step()
    assert chunked.drawn("taken out") == ()
    chunked.evict("taken out")  # half read
    chunked.evict("0")
    planned = {key: item.prior.ids for key, item in finish(chunked).items()}
    assert planned == {"long": expected, "1": alone_ids["1"], "2": alone_ids["2"]}


def test_running_rows_wait_for_one_chunk_and_a_newcomer_for_its_own_prompt(chunked):
    chunked.admit([request("running")])
    chunked.step()
    drawn = len(chunked.drawn("running"))
    chunked.admit([request("late", prompt="star " * 40)])
    prompt, steps = chunked.unread, 0
    while not chunked.drawn("late"):
        before = chunked.unread
        chunked.step()
        steps += 1
        assert before - chunked.unread <= 32
    assert steps == -(-prompt // 32) > 4
    assert len(chunked.drawn("running")) == drawn + steps  # it drew a token at each of them
    chunked.evict("late")
    chunked.evict("running")


def test_with_nothing_running_prompts_are_read_at_once(chunked):
    chunked.admit([request("a", prompt="star " * 40)])
    chunked.step()
    assert len(chunked.drawn("a")) == 2
    chunked.evict("a")


def test_nothing_grows_over_hundreds_of_requests(chunked):
    """Text and edits, finished and taken out; what Python holds and what the process holds."""
    picture = (noise(160, 128),)

    def some(count):
        for number in range(count):
            requests = [edit(f"{number} {row}", picture, size="64x32", seed=row) for row in range(3)]
            requests.append(request(f"{number} text", size="32x32", prompt="x" * (number % 50)))
            assert chunked.admit(requests) == []
            for _ in range(3):
                chunked.step()
            chunked.evict(f"{number} text")
            assert chunked.running == ()

    some(30)
    gc.collect()
    objects, memory = len(gc.get_objects()), resident()
    some(60)
    gc.collect()
    assert len(gc.get_objects()) < objects + 100  # not one more object a request
    assert resident() < memory + 16 * 2**20


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_the_likeliest_token_alone_is_what_greedy_draws(engines):
    planned = plan(
        engines["tiny"], request("greedy", temperature=0), request("first", top_k=1, top_p=1.0, temperature=2.0)
    )
    assert planned["first"] == planned["greedy"]


def test_the_seed_decides(engines):
    engine = engines["tiny"]
    first = plan(engine, request("a", seed=5), request("b", seed=6), request("c", seed=5))
    assert first["a"] == first["c"] != first["b"]
    assert plan(engine, request("a", seed=5))["a"] == first["a"]


@pytest.mark.parametrize("size", [*SIZES, "1x1", "512x32"])
def test_the_large_grid_comes_whole_and_from_the_codebook(size, engines, references):
    engine, size = engines["tiny"], Size.parse(size)
    codes = references["tiny"].model.config.vq_config.num_embeddings
    assert codes < references["tiny"].model.config.text_config.vision_vocab_size
    assert engine.admit([request("a", size=str(size), temperature=50.0, top_p=1.0)]) == []
    steps, ended = 0, []
    while not ended:
        ended, steps = engine.step(), steps + 1
    assert steps == size.preview_grid.tokens + size.large_grid.tokens - 1  # the first token comes from the prompt
    prior = ended[0].prior
    assert prior.grid == size.large_grid
    assert all(0 <= code < codes for code in prior.ids)
    assert ended[0].seconds > 0


def test_rows_leave_at_their_own_step(engines):
    engine = engines["tiny"]
    assert engine.admit([request("large", size="128x128"), request("small", size="32x32")]) == []
    assert engine.running == ("large", "small")
    assert engine.free_slots == 4
    assert list(finish(engine)) == ["small", "large"]
    assert engine.free_slots == 6
    assert engine.step() == []


def test_a_refused_request_harms_no_other(engines):
    engine = engines["tiny"]
    refused = engine.admit(
        [
            request("long", prompt="x" * 300),
            request("fine", seed=3),
            request("large", size="1024x1024"),
            request("broken", prompt="\ud800"),
        ]
    )
    assert [(failure.key, failure.code, failure.retryable) for failure in refused] == [
        ("long", "prompt_too_long", False),
        ("large", "size_too_large", False),
        ("broken", "invalid_prompt", False),
    ]
    assert "256" in refused[0].message
    assert engine.running == ("fine",)
    assert finish(engine)["fine"].prior.ids == plan(engine, request("fine", seed=3))["fine"]


def test_a_line_that_fills_up_never_has_the_codebook_sorted(engines, monkeypatch):
    """Whatever the row drew from that had it before."""
    engine = engines["tiny"]
    again, draw_again = [], engine._runner.state.draw_again
    monkeypatch.setattr(
        engine._runner.state,
        "draw_again",
        lambda logits, short: (again.append(short.nonzero()[:, 0].tolist()), draw_again(logits, short)),
    )
    engine.admit([request("narrow", top_p=0.0001), request("wide", temperature=5.0, top_p=1.0)])
    for _ in range(5):
        engine.step()
    assert again == [[1]] * 5
    engine.evict("wide")
    for _ in range(5):
        engine.step()
    assert len(again) == 5


def test_admitting_too_many_or_a_key_twice_starts_nothing(engines):
    engine = engines["tiny"]
    with pytest.raises(ValueError, match="6 slots are free"):
        engine.admit([request(str(i)) for i in range(7)])
    with pytest.raises(ValueError, match="keys"):
        engine.admit([request("a"), request("a")])
    assert engine.running == ()


def test_evicting_frees_the_slot_and_unknown_keys_are_ignored(engines):
    engine = engines["tiny"]
    engine.admit([request("a"), request("b")])
    engine.step()
    engine.evict("a")
    engine.evict("nobody")
    assert engine.running == ("b",)


@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_a_row_that_turns_to_nan_fails_alone(poisoned, engines):
    engine = engines["tiny"]
    requests = [request(str(i), seed=i, size="96x96") for i in range(3)]
    expected = plan(engine, *requests)
    engine.admit(requests)
    for _ in range(10):
        engine.step()
    engine._runner.state.rotary[poisoned] = float("nan")  # as broken memory or an overflow would
    ended = finish(engine)
    assert ended.pop(str(poisoned)) == ArFailure(
        str(poisoned), "nan_output", "the AR model's output was not a number", retryable=True
    )
    assert {key: item.prior.ids for key, item in ended.items()} == {key: expected[key] for key in ended}
    assert plan(engine, *requests) == expected  # its slot is usable again


def test_a_nan_prompt_fails_at_the_next_look(engines, monkeypatch):
    engine = engines["tiny"]
    prefill = engine._runner.decoder.prefill
    assert engine.admit([request("a")]) == []
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner.decoder, "prefill", lambda *given: prefill(*given) * float("nan"))
        engine.step()
    assert finish(engine)["a"].code == "nan_output"


def test_an_error_while_reading_a_prompt_leaves_no_half_row(engines, monkeypatch):
    engine = engines["tiny"]
    expected = plan(engine, request("a"), request("b", seed=1))

    def fail(*_, **__):
        raise torch.OutOfMemoryError

    assert engine.admit([request("a")]) == []
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner.state, "draw_first", fail)
        assert engine.admit([request("b", seed=1)]) == []
        (failed,) = engine.step()
    assert failed == ArFailure("b", "ar_error", "planning failed: OutOfMemoryError", True, failed.traceback)
    assert "OutOfMemoryError" in failed.traceback
    assert engine.running == ("a",)
    assert engine.admit([request("b", seed=1)]) == []
    assert {key: item.prior.ids for key, item in finish(engine).items()} == expected


def test_the_longest_prompt_of_the_largest_picture_fits_its_slot(tiny_checkpoint):
    engine = ArEngine.load(
        tiny_checkpoint,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        slots=1,
        max_prompt_tokens=100,
        max_pixels=96 * 96,
    )
    largest = max(
        (Size(9216 // height, height) for height in range(5, 2049)),
        key=lambda size: size.preview_grid.tokens + size.large_grid.tokens,
    )
    assert most_tokens(96 * 96) == largest.preview_grid.tokens + largest.large_grid.tokens
    frame = len(engine._opener._prompts.encode("", largest))
    fits = request("fits", prompt="x" * (100 - frame), size=str(largest))
    assert len(plan(engine, fits)["fits"]) == largest.large_grid.tokens
    assert engine.admit([request("over", prompt="x" * (101 - frame), size=str(largest))])[0].code == "prompt_too_long"


def test_weights_that_are_missing_are_not_drawn_at_random(tiny_checkpoint, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    from app.checkpoint import Checkpoint
    from app.errors import BrokenCheckpoint

    shutil.copytree(tiny_checkpoint.folder, tmp_path / "copy")
    path = tmp_path / "copy" / "vision_language_encoder" / "model.safetensors"
    weights = load_file(path)
    del weights["lm_head.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(BrokenCheckpoint, match=r"vision_language_encoder lack lm_head\.weight"):
        ArEngine.load(
            Checkpoint(tmp_path / "copy"),
            device=torch.device("cpu"),
            dtype=torch.float32,
            slots=1,
            max_prompt_tokens=64,
            max_pixels=1024,
        )
