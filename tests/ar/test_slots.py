import pytest
import torch

from app.ar import slots
from app.ar.slots import buckets, count, filled, slot_bytes
from app.errors import Misconfigured

CPU = torch.device("cpu")


def test_the_formula_counts_what_is_allocated(engines):
    engine = engines["tiny"]
    decoder, cache, state = engine._runner.decoder, engine._runner.cache, engine._runner.state
    allocated = sum(layer.nbytes for layer in cache.layers)
    allocated += sum(tensor.nbytes for tensor in (state.tokens, state.uniform, state.rotary))
    one = slot_bytes(
        layers=decoder.layer_count,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        rotary_dim=decoder.rotary_dim,
        max_prompt_tokens=256,
        max_pixels=512 * 512,
        dtype=torch.float32,
    )
    assert allocated == one * filled(6)


@pytest.fixture
def free(monkeypatch):
    """1000 bytes are free, 800 of them for slots."""
    monkeypatch.setattr(slots, "_free_bytes", lambda _: 1000)


@pytest.mark.parametrize(("asked", "one", "given"), [(3, 100, 3), (8, 100, 8), (0, 100, 8), (0, 70, 8), (0, 1, 64)])
def test_the_slots_asked_for_or_what_fits(free, asked, one, given):
    assert count(asked, one, CPU) == given


@pytest.mark.parametrize(("asked", "one", "fit"), [(9, 100, 8), (1, 201, 3), (0, 201, 3), (0, 801, 0)])
def test_a_start_that_does_not_fit_is_refused_with_the_numbers(free, asked, one, fit):
    with pytest.raises(Misconfigured, match=rf"{filled(max(asked, 1))} AR slots .* cpu has .* free.* {fit} fit"):
        count(asked, one, CPU)


def test_free_memory_of_this_machine_is_plausible():
    assert 2**20 < slots._free_bytes(CPU) < 2**50


def test_buckets_double():
    assert buckets(4, 32) == [4, 8, 16, 32]
    assert buckets(4, 4) == [4]
    assert buckets(512, 1300) == [512, 1024, 1300]
