"""Draws the next token of every row at once, each by its own temperature, top-p and uniform number.

A row's token depends on that row's logits and numbers only. There is no `multinomial`: it reads a shared generator,
so that a row would change with its neighbours, and it waits for the device.
"""

import torch

from app import devices

#: Tokens of the distribution's head that hold the nucleus almost always, so that a CPU need not sort the codebook.
_HEAD = 64
#: A top-k that allows the whole codebook, whatever its size.
EVERY = 2**31 - 1


def sampling_parameters(temperature: float, top_p: float, top_k: int) -> tuple[float, float, int]:
    """What `sample` takes for a request: greedy (temperature 0) is a nucleus of one token, top-k 0 is the codebook."""
    return (1.0, 0.0, EVERY) if temperature == 0 else (temperature, top_p, top_k or EVERY)


def draw_ahead(seed: int, count: int) -> torch.Tensor:
    """All the uniform numbers of one row, [count] in [0, 1): on the CPU, because devices' generators differ."""
    return torch.rand(count, generator=devices.generator(seed), dtype=torch.float32)


def sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next tokens [rows] int64 and whether a row's logits were broken [rows] bool, from codebook logits [rows, codes].

    As transformers' TopKLogitsWarper and TopPLogitsWarper, one after the other: of the `top_k` most probable tokens the
    smallest set whose probability together reaches `top_p` of theirs, at least one. The token is the inverse of its
    cumulative distribution at `uniform`. A broken row (NaN, or infinity) gets token 0.
    """
    drawn, broken, short = sample_head(logits, temperature, top_p, top_k, uniform)
    if bool(short.any()):
        drawn[short] = sample_whole(logits[short], temperature[short], top_p[short], top_k[short], uniform[short])
    return drawn, broken


def sample_head(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `sample`, without a decision on the host, so that it can be compiled or captured.

    The third result [rows] bool marks rows whose nucleus may be larger than the head that a CPU looks at; their tokens
    are to be drawn again by `sample_whole`. Other devices sort all: asking them would stall, and sorting is fast there.
    """
    probabilities = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    codes = probabilities.shape[-1]
    if logits.device.type == "cpu":
        ordered, tokens = torch.topk(probabilities, min(_HEAD, codes))
    else:
        ordered, tokens = torch.sort(probabilities, dim=-1, descending=True)
    head = ordered.shape[-1]
    cumulative = ordered.cumsum(dim=-1)
    # One NaN or +infinity among the logits makes the whole row of probabilities NaN.
    broken = cumulative[:, 0].isnan()
    # With all the codebook allowed its sum is known; what fewer tokens sum up to is not, when some are past the head.
    unseen = torch.where(top_k >= codes, cumulative[:, -1] < top_p, top_k > head)
    short = unseen & (head < codes)
    return _draw(tokens, cumulative, codes, top_p, top_k, uniform).masked_fill(broken, 0), broken, short


def sample_whole(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """As `sample` for rows that are not broken, looking at the whole codebook."""
    probabilities = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    ordered, tokens = torch.sort(probabilities, dim=-1, descending=True)
    return _draw(tokens, ordered.cumsum(dim=-1), probabilities.shape[-1], top_p, top_k, uniform)


def _draw(
    tokens: torch.Tensor,
    cumulative: torch.Tensor,
    codes: int,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniform: torch.Tensor,
) -> torch.Tensor:
    """Draw from `tokens` [rows, n], most probable first and the whole nucleus among them."""
    end = (top_k - 1).clamp(max=tokens.shape[-1] - 1)[:, None]
    most = torch.where(top_k >= codes, 1.0, cumulative.gather(1, end).squeeze(1))
    last = (cumulative[:, :-1] < (top_p * most)[:, None]).sum(dim=-1, keepdim=True).minimum(end)
    target = cumulative.gather(1, last) * uniform[:, None]
    rank = (cumulative <= target).sum(dim=-1, keepdim=True)
    return tokens.gather(1, torch.minimum(rank, last)).squeeze(1)
