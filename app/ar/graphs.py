"""How the decode step is executed: call by call, compiled, or captured as a device graph. All of it is set up at start.

A small model's step is dozens of short operations, whose time goes into starting them. `compile` fuses them; a captured
graph (CUDA, NPU) starts them all at once. What pads a bucket is harmless: see `RowState`. A large model on a CPU gains
nothing by either; see `app.ar.packed`.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

import structlog
import torch

from app.ar.decode import DecodeStep
from app.ar.packed import PackedLinear
from app.ar.slots import buckets, filled
from app.errors import Misconfigured
from app.ranks import Ranks

log = structlog.get_logger(__name__)

Graph = Literal["auto", "off", "cuda", "npu", "compile"]
#: Takes the running rows and the largest number of positions that one of them holds; the results of a `DecodeStep`.
Run = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]

#: What "auto" means on a device. None of them must be there: auto falls back to call by call.
_AUTO: dict[str, Graph] = {"cpu": "compile", "cuda": "cuda", "npu": "npu"}
#: On a CPU a model of more bytes than caches hold spends its time in reading weights, not in starting operations.
_CACHED = 64 * 2**20
#: A captured graph is bound to its shape. Attention looks at this many positions at least, then at twice as many, ...
_LEAST_SEEN = 512


def prepare(step: DecodeStep, graph: Graph, ranks: Ranks | None) -> tuple[str, Run]:
    """Compile or capture, which takes from seconds to minutes; what the choice became, and how to run a step.

    Raises Misconfigured when a graph that was asked for by name cannot be made.
    """
    device = step.device.type
    if graph == "auto" and device == "cpu" and step.decoder.weight_bytes > _CACHED:
        return _packed(step)
    kind = _AUTO.get(device, "off") if graph == "auto" else graph
    if kind in ("cuda", "npu") and kind != device:
        raise Misconfigured(f"the graph setting {kind} needs a device of that kind, and the AR engine runs on {device}")
    started = time.monotonic()
    try:
        run = _eager(step) if kind == "off" else _compiled(step) if kind == "compile" else _captured(step)
    except (RuntimeError, OSError) as error:  # no C++ compiler or no headers; an operation that cannot be captured
        reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__  # pages of advice follow
        if graph != "auto":
            raise Misconfigured(f"the decode step cannot be run as graph={kind}: {reason}") from error
        log.warning("graph_off", wanted=kind, reason=reason)
        return "off", _eager(step)
    if kind != "off":
        log.info("graph_ready", graph=kind, seconds=round(time.monotonic() - started, 1))
    return kind, run


def _packed(step: DecodeStep) -> tuple[str, Run]:
    """No graph, but matrix products that read a weight once. It would take minutes to compile many layers."""
    try:
        if step.decoder.dtype != torch.float32:
            raise ValueError("the weights are not float32")
        step.decoder.pack(PackedLinear.build())
    except (OSError, ValueError) as error:
        log.warning("graph_off", wanted="packed", reason=str(error))
        return "off", _eager(step)
    return "packed", lambda rows, longest: step(*step.shape(rows, longest))  # a row's bits are its own without company


def _eager(step: DecodeStep) -> Run:
    return lambda rows, longest: step(*step.shape(filled(rows), longest))


def _compiled(step: DecodeStep) -> Run:
    """One program for every number of rows and positions.

    A program for each would draw a row's token by other code when its neighbours change, and take as long to compile
    each time.
    """
    # A C++ caller: from Python, starting the kernels would take longer than they do.
    options: dict[str, Any] = {"cpp_wrapper": True} if step.device.type == "cpu" else {}
    program = torch.compile(step, fullgraph=True, options=options)
    shape = step.shape(step.most_rows, step.most_seen - 1)
    for sizes in shape:
        torch._dynamo.maybe_mark_dynamic(sizes, 0)
    program(*shape)
    run: Run = lambda rows, longest: program(*step.shape(filled(rows), longest))  # noqa: E731
    run(step.most_rows, 0)  # a second program would be compiled here, not under the first row
    return run


def _captured(step: DecodeStep) -> Run:
    """A graph for every bucket of rows and positions, the largest first, so that the others fit its memory."""
    device = torch.get_device_module(step.device)
    new_graph = device.CUDAGraph if step.device.type == "cuda" else device.NPUGraph
    pool = device.graph_pool_handle()
    graphs = {}
    row_buckets, seen_buckets = buckets(4, step.most_rows), buckets(_LEAST_SEEN, step.most_seen)
    for rows in reversed(row_buckets):
        for seen in reversed(seen_buckets):
            shape = step.shape(rows, seen - 1)
            side = device.Stream()
            side.wait_stream(device.current_stream())
            with device.stream(side):  # libraries set themselves up in the first calls, which cannot be captured
                step(*shape)
                step(*shape)
            device.current_stream().wait_stream(side)
            graph = new_graph()
            with device.graph(graph, pool=pool):
                results = step(*shape)
            graphs[rows, seen] = graph, results

    def run(rows: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        bucket = next(b for b in row_buckets if b >= rows), next(b for b in seen_buckets if b > longest)
        graph, (logits, short) = graphs[bucket]
        graph.replay()
        return logits[:rows], short[:rows]

    return run
