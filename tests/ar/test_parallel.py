"""Tensor parallel over gloo, by the followers that a worker starts. The leader is this process."""

import pytest
import torch

from app.ar.engine import ArEngine
from app.ranks import Leader
from tests.ar.plans import alone, plan, request

CPU = torch.device("cpu")
REQUESTS = [
    request("greedy", temperature=0),
    request("drawn", prompt="a cat", size="96x64", seed=1),
    request("wide nucleus", size="128x32", seed=2, temperature=5.0, top_p=1.0),
    request("long", prompt="star " * 40, seed=3),
    request("fifth", seed=4),
]


def group(checkpoint, size, *, graph="off", slots=8):
    environment = {
        "PLANPAINT_CHECKPOINT": str(checkpoint.folder),
        "PLANPAINT_AR_SLOTS": str(slots),
        "PLANPAINT_MAX_PROMPT_TOKENS": "256",
        "PLANPAINT_MAX_PIXELS": str(256 * 128),
        "PLANPAINT_GRAPH": graph,
        "PLANPAINT_THREADS": "1",
    }
    return Leader(size, CPU, ["ar", "--tp", str(size)], environment)


def load(checkpoint, leader, *, graph="off", slots=8):
    return ArEngine.load(
        checkpoint,
        device=CPU,
        dtype=torch.float32,
        slots=slots,
        max_prompt_tokens=256,
        max_pixels=256 * 128,
        prefill_chunk=64,
        graph=graph,
        leader=leader,
    )


@pytest.mark.parametrize(("size", "name"), [(2, "tiny"), (4, "tiny"), (2, "demo")])
def test_tokens_do_not_depend_on_the_number_of_ranks(size, name, tiny_checkpoint, demo_checkpoint):
    """4 ranks are more than there are key-value heads: two ranks hold the same one."""
    checkpoint = {"tiny": tiny_checkpoint, "demo": demo_checkpoint}[name]
    expected = alone(load(checkpoint, None), REQUESTS)
    leader = group(checkpoint, size)
    try:
        engine = load(checkpoint, leader)
        assert alone(engine, REQUESTS[:2]) == {key: expected[key] for key in ("greedy", "drawn")}
        assert plan(engine, *REQUESTS) == expected
    finally:
        leader.close()
