"""The self-test of a worker catches a device, a driver or weights that compute nonsense."""

import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.ar.engine import ArEngine
from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine
from app.errors import Misconfigured
from app.launcher.child import EX_CONFIG
from app.tiny_checkpoint import make
from tests.workers.processes import ended, worker
from workers import selftest

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_agrees_with_the_formula_and_a_mask_taken_wrong_does_not(dtype, monkeypatch):
    selftest.check_attention(CPU, dtype)
    right = selftest.scaled_dot_product_attention
    for wrong in (lambda mask: None, lambda mask: ~mask | torch.eye(33, dtype=torch.bool)):
        monkeypatch.setattr(
            selftest,
            "scaled_dot_product_attention",
            lambda q, k, v, attn_mask, wrong=wrong: right(q, k, v, attn_mask=wrong(attn_mask)),
        )
        with pytest.raises(Misconfigured, match=r"self-test of attention failed: .* is off by"):
            selftest.check_attention(CPU, dtype)


def test_an_ar_engine_whose_logits_are_no_numbers_is_caught(tiny_checkpoint):
    engine = ArEngine.load(
        tiny_checkpoint, device=CPU, dtype=torch.float32, slots=4, max_prompt_tokens=64, max_pixels=1024
    )
    selftest.check_ar(engine)
    assert engine.running == ()
    for layer in engine._runner.cache.layers:
        layer.fill_(float("nan"))
    with pytest.raises(Misconfigured, match="self-test of AR failed"):
        selftest.check_ar(engine)


@pytest.mark.parametrize(("value", "why"), [(float("nan"), "not a number"), (0.0, "one plain colour")])
def test_a_dit_engine_that_paints_nothing_is_caught(tiny_checkpoint, value, why):
    engine = DitEngine.load(tiny_checkpoint, device=CPU, dtype=torch.float32)
    selftest.check_dit(engine)
    with torch.no_grad():
        for parameter in engine._decoder._vae.decoder.conv_out.parameters():
            parameter.fill_(value)
    with pytest.raises(Misconfigured, match=f"self-test of DiT failed: .*{why}"):
        selftest.check_dit(engine)


def test_a_worker_that_fails_its_self_test_ends_and_is_never_ready(servers, client, registry, tmp_path):
    folder = tmp_path / "nan"
    make(folder)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    save_file({name: torch.full_like(tensor, float("nan")) for name, tensor in tensors.items()}, weights)
    seen, log = set(), tmp_path / "dit.log"
    with worker(servers, Checkpoint(folder), log, "dit") as process:
        while process.exitcode is None:
            seen |= {each.state for each in registry.list()}
            time.sleep(0.02)
        assert ended(process) == EX_CONFIG
    said = log.read_text().strip().splitlines()[-1]
    assert said.startswith("planpaint: the self-test of DiT failed: ")
    assert seen <= {"starting"}
