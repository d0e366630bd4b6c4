"""Draws the next token of every row at once, each by its own temperature, top-p and uniform number.

A row's token depends on that row's logits and numbers only. There is no `multinomial`: it reads a shared generator,
so that a row would change with its neighbours, and it waits for the device.
"""

import torch

#: Tokens of the distribution's head that hold the nucleus almost always, so that a CPU need not sort the codebook.
_HEAD = 64


def sampling_parameters(temperature: float, top_p: float) -> tuple[float, float]:
    """What `sample` takes for a request: greedy (temperature 0) is a nucleus of one token."""
    return (1.0, 0.0) if temperature == 0 else (temperature, top_p)


def draw_ahead(seed: int, count: int) -> torch.Tensor:
    """All the uniform numbers of one row, [count] in [0, 1): on the CPU, because devices' generators differ."""
    return torch.rand(count, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float32)


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens [rows] int64 and whether a row's logits were broken [rows] bool, from codebook logits [rows, codes].

    The nucleus is that of transformers' TopPLogitsWarper: the smallest set of most probable tokens whose probability
    together reaches `top_p`, at least one. The token is the inverse of its cumulative distribution at `uniform`.
    A broken row (NaN, or infinity) gets token 0.
    """
    probabilities = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    if logits.device.type != "cpu":  # asking whether the head is enough would stall a device; sorting is fast there
        ordered, tokens = torch.sort(probabilities, dim=-1, descending=True)
        return _draw(tokens, ordered.cumsum(dim=-1), top_p, uniform)
    ordered, tokens = torch.topk(probabilities, min(_HEAD, probabilities.shape[-1]))
    cumulative = ordered.cumsum(dim=-1)
    drawn, broken = _draw(tokens, cumulative, top_p, uniform)
    short = cumulative[:, -1] < top_p
    if bool(short.any()):
        ordered, tokens = torch.sort(probabilities[short], dim=-1, descending=True)
        drawn[short], _ = _draw(tokens, ordered.cumsum(dim=-1), top_p[short], uniform[short])
    return drawn, broken


def _draw(
    tokens: torch.Tensor, cumulative: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from `tokens` [rows, n], most probable first and the whole nucleus among them."""
    last = (cumulative[:, :-1] < top_p[:, None]).sum(dim=-1, keepdim=True)
    target = cumulative.gather(1, last) * uniform[:, None]
    rank = (cumulative <= target).sum(dim=-1, keepdim=True)
    token = tokens.gather(1, torch.minimum(rank, last)).squeeze(1)
    # One NaN or +infinity among the logits makes the whole row of probabilities NaN.
    broken = cumulative[:, 0].isnan()
    return token.masked_fill(broken, 0), broken
