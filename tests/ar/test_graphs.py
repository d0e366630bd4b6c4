from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from app import devices
from app.ar import graphs
from app.ar.engine import ArEngine
from app.ar.packed import PackedLinear
from app.errors import Misconfigured
from tests.ar.plans import alone, plan, request

REQUESTS = [
    request("greedy", temperature=0),
    request("drawn", prompt="a cat", size="96x64", seed=1),
    request("wide nucleus", size="128x32", seed=2, temperature=5.0, top_p=1.0),
    request("long", prompt="star " * 40, seed=3),
    request("fifth", seed=4),
]


def _engine(checkpoint, graph):
    return ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=8,
        max_prompt_tokens=256,
        max_pixels=256 * 128,
        graph=graph,
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")  # torch imports its own old parts
def test_a_compiled_step_draws_the_same_tokens_by_one_program(tiny_checkpoint, engines):
    """Needs a C++ compiler, as `graph=compile` does."""
    from torch._dynamo.utils import counters

    counters.clear()
    engine = _engine(tiny_checkpoint, "compile")
    assert engine.graph == "compile"
    expected = alone(engines["tiny"], REQUESTS)
    assert alone(engine, REQUESTS[:2]) == {key: expected[key] for key in ("greedy", "drawn")}
    assert plan(engine, *REQUESTS) == expected
    assert counters["stats"]["unique_graphs"] == 1  # a second one would be compiled in the middle of serving


def test_packed_products_draw_the_same_tokens(tiny_checkpoint, engines, monkeypatch):
    monkeypatch.setattr(graphs, "_CACHED", 0)
    engine = _engine(tiny_checkpoint, "auto")
    assert engine.graph == "packed"
    expected = alone(engines["tiny"], REQUESTS)
    assert alone(engine, REQUESTS) == expected
    assert plan(engine, *REQUESTS) == expected


def test_with_packed_products_a_rows_logits_are_the_same_bits_in_any_company(tiny_checkpoint, monkeypatch):
    """One row alone is one row here, not the first of four."""
    monkeypatch.setattr(graphs, "_CACHED", 0)
    engine, seen = _engine(tiny_checkpoint, "auto"), []
    decode = engine._runner._step

    def spy(*given):
        logits, short = decode(*given)
        seen.append(logits[0].clone())
        return logits, short

    engine._runner._step = spy
    engine.admit(REQUESTS[:1])
    for _ in range(40):
        engine.step()
    expected = seen.copy()
    seen.clear()
    engine.evict("greedy")
    engine.admit(REQUESTS[:1])
    for number in range(40):
        if number % 10 == 5:
            engine.admit(REQUESTS[1 + number // 10 : 2 + number // 10])
        engine.step()
    assert torch.equal(torch.stack(seen), torch.stack(expected))


def test_auto_does_without_a_compiler_and_says_so_once(tiny_checkpoint, engines, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("backend raised:\nNo working C++ compiler\n\na long list")

    monkeypatch.setattr(torch, "compile", refuse)
    monkeypatch.setitem(devices._BACKENDS, "cpu", replace(devices._BACKENDS["cpu"], graph="compile"))
    with capture_logs() as logs:
        engine = _engine(tiny_checkpoint, "auto")
    assert engine.graph == "off"
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("graph_off", "backend raised: No working C++ compiler")
    ]
    assert plan(engine, REQUESTS[0]) == plan(engines["tiny"], REQUESTS[0])
    with pytest.raises(Misconfigured, match="graph=compile: backend raised: No working C"):
        _engine(tiny_checkpoint, "compile")


def test_large_models_do_without_a_compiler_too(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(graphs, "_CACHED", 0)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with capture_logs() as logs:
        assert _engine(tiny_checkpoint, "auto").graph == "off"
    assert [line["reason"] for line in logs] == ["there is no C++ compiler"]


@pytest.mark.parametrize("graph", ["cuda", "npu"])
def test_a_device_graph_needs_its_device(tiny_checkpoint, graph):
    with pytest.raises(Misconfigured, match=f"{graph} needs a device of that kind"):
        _engine(tiny_checkpoint, graph)


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 64), (208, 96), (64, 33)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_right_and_a_rows_bits_are_its_own(outputs, inputs, bias):
    linear = PackedLinear.build()
    x, weight = torch.randn(19, inputs), torch.randn(outputs, inputs)
    given = torch.randn(outputs) if bias else None
    result = linear(x, linear.pack(weight), given)
    assert torch.allclose(result, torch.nn.functional.linear(x, weight, given), atol=1e-4)
    for rows in range(1, 19):
        assert torch.equal(linear(x[:rows], linear.pack(weight), given), result[:rows])
    assert torch.equal(linear(x[7:8], linear.pack(weight), given), result[7:8])


def test_odd_widths_cannot_be_packed():
    with pytest.raises(ValueError, match="17 outputs"):
        PackedLinear.pack(torch.zeros(17, 8))
