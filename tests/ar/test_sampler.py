import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from app.ar.sampler import EVERY, draw_ahead, sample, sampling_parameters


def logits(rows, codes, spread=3.0, seed=0):
    return spread * torch.randn(rows, codes, generator=torch.Generator().manual_seed(seed))


def expected(row, temperature, top_p, top_k, uniform):
    """One row, step by step: transformers' warpers, then the inverse of the cumulative distribution."""
    scores = TopKLogitsWarper(min(top_k, len(row)))(None, TemperatureLogitsWarper(temperature)(None, row[None]))
    scores = TopPLogitsWarper(top_p)(None, scores)[0]
    probabilities, tokens = scores.softmax(-1).sort(descending=True)
    return tokens[int((probabilities.cumsum(-1) <= uniform).sum())].item()


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.75, 0.95, 0.999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])  # 0.1: the nucleus is most of the codebook, beyond its head
@pytest.mark.parametrize("top_k", [1, 3, 64, 65, 200, 499, 500, EVERY])  # 64 is the head that a CPU looks at
def test_a_row_is_drawn_as_the_reference_warpers_say(top_p, spread, top_k):
    rows = logits(64, 500, spread)
    uniform = draw_ahead(1, 64)
    tokens, broken = sample(rows, torch.full((64,), 0.9), torch.full((64,), top_p), torch.full((64,), top_k), uniform)
    assert not broken.any()
    assert tokens.tolist() == [expected(row, 0.9, top_p, top_k, u) for row, u in zip(rows, uniform, strict=True)]


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p():
    rows = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(1000, 1)
    uniform = torch.linspace(0, 1 - 2**-24, 1000)
    for top_p, kept in ((0.01, {0}), (0.49, {0}), (0.6, {0, 1}), (0.79, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        tokens, _ = sample(rows, torch.ones(1000), torch.full((1000,), top_p), torch.full((1000,), EVERY), uniform)
        assert set(tokens.tolist()) == kept
    shares = torch.bincount(tokens) / 1000
    assert torch.allclose(shares, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=2e-3)


def test_temperature_zero_takes_the_most_probable_token():
    rows = logits(16, 200, spread=0.01)
    temperature, top_p, top_k = (torch.full((16,), value) for value in sampling_parameters(0, 0.95, 7))
    tokens, _ = sample(rows, temperature, top_p, top_k, draw_ahead(0, 16))
    assert torch.equal(tokens, rows.argmax(-1))
    assert sampling_parameters(0.9, 0.75, 0) == (0.9, 0.75, EVERY)
    assert sampling_parameters(0.9, 0.75, 7) == (0.9, 0.75, 7)


def test_a_row_does_not_depend_on_its_neighbours():
    rows = torch.cat((logits(5, 300), logits(5, 300, spread=0.1)))  # the second half needs the whole sort
    temperature, top_p = torch.linspace(0.5, 1.5, 10), torch.linspace(0.1, 1.0, 10)
    top_k, uniform = torch.tensor([EVERY, 5, 80, 300, 1] * 2), draw_ahead(3, 10)
    together, _ = sample(rows, temperature, top_p, top_k, uniform)
    for i in range(10):
        line = slice(i, i + 1)
        assert sample(rows[line], temperature[line], top_p[line], top_k[line], uniform[line])[0] == together[i]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_broken_row_is_marked_and_the_others_are_drawn(poison):
    rows = logits(3, 300)
    parameters = (torch.ones(3), torch.full((3,), 0.9), torch.full((3,), EVERY), draw_ahead(0, 3))
    whole, _ = sample(rows, *parameters)
    rows[1, 17] = poison
    tokens, broken = sample(rows, *parameters)
    assert broken.tolist() == [False, True, False]
    assert tokens.tolist() == [whole[0], 0, whole[2]]


def test_numbers_are_drawn_ahead_by_seed():
    assert torch.equal(draw_ahead(7, 5), draw_ahead(7, 9)[:5])
    assert not torch.equal(draw_ahead(7, 5), draw_ahead(8, 5))
    assert draw_ahead(2**63 - 1, 4).shape == (4,)
