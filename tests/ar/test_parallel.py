"""Tensor parallel over gloo, by the followers that a worker starts. The leader is this process."""

import json
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from app.ar.engine import ArEngine
from app.ar.model import Decoder
from app.ar.weights import Weights
from app.checkpoint import Checkpoint
from app.devices import STATUS, kilobytes
from app.errors import Misconfigured
from app.ranks import Leader
from tests.ar.plans import edit, plan, request
from tests.edits import noise

CPU = torch.device("cpu")
REQUESTS = [
    request("greedy", temperature=0),
    edit("edit", (noise(128, 192),), size="128x96", seed=1),
    request("wide nucleus", size="128x32", seed=2, temperature=5.0, top_p=1.0),
    request("long", prompt="star " * 40, seed=3),
    request("fifth", prompt="a cat", seed=4),
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


def test_plans_of_two_ranks_are_those_of_one(tiny_checkpoint):
    expected = plan(load(tiny_checkpoint, None), *REQUESTS)
    leader = group(tiny_checkpoint, 2)
    try:
        assert plan(load(tiny_checkpoint, leader), *REQUESTS) == expected
    finally:
        leader.close()


def begun(engine, requests):
    """The first tokens of each row, prompts of all of them read."""
    assert engine.admit(requests) == []
    for _ in range(60):
        engine.step()
    assert not engine.unread
    return [engine.drawn(request.key) for request in requests]


def test_tokens_of_more_ranks_than_key_value_heads_are_those_of_one(tiny_checkpoint):
    """Two ranks hold the same one."""
    expected = begun(load(tiny_checkpoint, None), REQUESTS)
    leader = group(tiny_checkpoint, 4)
    try:
        assert begun(load(tiny_checkpoint, leader), REQUESTS) == expected
    finally:
        leader.close()


@pytest.mark.parametrize(
    ("size", "graph", "message"),
    [(3, "off", "3 ranks cannot share 4 heads"), (2, "compile", "compile cannot go with several ranks")],
)
def test_what_ranks_cannot_share_is_refused(size, graph, message, tiny_checkpoint):
    @dataclass
    class Place:
        rank: int
        size: int

        def least(self, number):
            return number

    with pytest.raises(Misconfigured, match=message):
        load(tiny_checkpoint, Place(0, size), graph=graph)


def _anonymous():
    """Bytes of this process; files that are mapped do not count."""
    return kilobytes(STATUS, "RssAnon")


def _peaks(folder):
    """The most that loading the share of one rank of 4 takes, and then the whole."""
    peaks = []

    def watch():
        while True:
            peaks.append(_anonymous())
            time.sleep(0.0005)

    threading.Thread(target=watch, daemon=True).start()
    found = []
    for size in (4, 1):
        before = _anonymous()
        peaks.clear()
        weights = Weights.load(Checkpoint(folder))
        place = SimpleNamespace(rank=1, size=size) if size > 1 else None
        decoder = Decoder(weights, CPU, torch.bfloat16, ranks=place)
        found.append(max([*peaks, _anonymous()]) - before)
        del decoder, weights
    return found


def test_a_rank_takes_its_share_of_the_memory(tiny_checkpoint, tmp_path):
    """Also while it loads: never the whole checkpoint first."""
    folder = tmp_path / "vision_language_encoder"
    folder.mkdir()
    source = tiny_checkpoint.part("vision_language_encoder")
    config = json.loads((source / "config.json").read_text())
    text = config["text_config"] | {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "head_dim": 128,
    }
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))
    with torch.device("meta"):
        model = GlmImageForConditionalGeneration._from_config(GlmImageConfig.from_pretrained(folder))
    weights = {name: torch.zeros(tensor.shape) for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        shared, whole = pool.submit(_peaks, tmp_path).result()
    assert whole > 25 * 2**20  # 6 layers in bfloat16
    assert shared < 0.4 * whole
