import torch

from app.ar.kv_cache import BLOCK, KvCache


def make(slots=3):
    return KvCache(
        layers=2, slots=slots, kv_heads=2, capacity=70, head_dim=4, device=torch.device("cpu"), dtype=torch.float32
    )


def test_slots_are_zero_and_their_capacity_is_whole_blocks():
    cache = make()
    assert cache.capacity == 5 * BLOCK == 80
    assert [tuple(layer.shape) for layer in cache.layers] == [(3, 2, 2, 81, 4)] * 2
    assert not any(layer.any() for layer in cache.layers)


def test_a_row_moves_and_is_forgotten():
    cache = make()
    row = torch.randn(2, 2, 50, 4)
    for layer in cache.layers:
        layer[2, :, :, :50] = row
    cache.move(2, 0, length=50)
    cache.clear(2, length=50)
    for layer in cache.layers:
        assert torch.equal(layer[0, :, :, :50], row)
        assert not layer[1:].any()


def test_clearing_removes_nan():
    cache = make()
    for layer in cache.layers:
        layer[1, :, :, :20] = float("nan")
    cache.clear(1, length=20)
    assert all(torch.isfinite(layer).all() for layer in cache.layers)
