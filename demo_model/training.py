"""The loop that all stages share: a learning rate that may stop at any time, and a state on disk to go on from.

Warmup, then one constant rate for as many steps as there is time for. `cool` starts from any such state and takes the
rate to nearly nothing within a number of steps; the constant stage can go on later as if that had not been. Whoever is
interrupted loses two minutes at most and ends with the same weights.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

#: Steps over which the rate rises, and what is left of it at the end of `cool`.
_WARMUP, _LEFT = 60, 0.02
#: CPU seconds between two states on disk, and steps between two lines of the log.
_SAVE_S, _LOG = 120.0, 25

Figures = dict[str, float]


class Unfinished(Exception):
    """There is no result of a stage yet, or what lies there cannot be gone on from; the message says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One network in training.

    `loss` draws a batch with the generator and returns the loss and figures for the log; it is told what part of the
    cooling is over, 0 to 1.
    """

    name: str
    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    clipped: tuple[nn.Parameter, ...]
    loss: Callable[[random.Random, float], tuple[torch.Tensor, Figures]]
    #: What else the batches depend on; kept with the state.
    memory: Any = None


class Training:
    """A stage with its place in the schedule; reads its state from `folder` when there is one.

    `upon`: what names the weights that it learns upon. Raises Unfinished for a state of another seed or other weights.
    """

    def __init__(self, stage: Stage, folder: Path, seed: int, upon: str = "") -> None:
        self._stage, self._folder = stage, folder
        self._rng = random.Random(seed)  # noqa: S311  (chance for training, not for secrets)
        torch.manual_seed(seed)
        self._origin = f"seed {seed} upon {upon}" if upon else f"seed {seed}"
        self._rates = [group["lr"] for optimizer in stage.optimizers for group in optimizer.param_groups]
        self.steps, self.cpu_s, self._cooled = 0, 0.0, 0
        self._figures: list[Figures] = []
        if self._file("state").exists():
            self._load(_read(self._file("state")))

    def run(self, steps: int) -> None:
        """Train at the constant rate until the stage has had so many steps in all.

        Raises RuntimeError once this object has cooled: the constant stage goes on from its own file. Raises Unfinished
        when the stage has had more steps already.
        """
        if self._cooled:
            raise RuntimeError(f"{self._stage.name} has cooled; read its constant stage anew to go on")
        if self.steps > steps:
            raise Unfinished(f"{self._stage.name} has had {self.steps} steps, more than {steps}: take another folder")
        if self.steps == steps:
            return
        started, saved = time.process_time() - self.cpu_s, self.cpu_s
        while self.steps < steps:
            self._step(min(1.0, (self.steps + 1) / _WARMUP), 0.0)
            self.steps += 1
            self.cpu_s = time.process_time() - started
            self._log("constant", self.steps)
            if self.cpu_s - saved > _SAVE_S:
                self._save("state")
                saved = self.cpu_s
        self._save("state")

    def cool(self, length: int) -> None:
        """Take the rate down to nearly nothing within `length` steps; keep the cooled weights.

        The file of the constant stage stays as it is. Interrupted, it goes on where it was if that file is the same.
        Raises RuntimeError once this object has cooled.
        """
        if self._cooled:
            raise RuntimeError(f"{self._stage.name} has cooled; read its constant stage anew to cool it otherwise")
        if self._file("cooling").exists():
            kept = _read(self._file("cooling"))
            if (kept["steps"], kept["length"], kept["origin"]) == (self.steps, length, self._origin):
                self._load(kept)
        if self._cooled == length:
            return
        started, saved = time.process_time() - self.cpu_s, self.cpu_s
        while self._cooled < length:
            over = self._cooled / length
            self._step(max(_LEFT, 1 - over), over)
            self._cooled += 1
            self.cpu_s = time.process_time() - started
            self._log("cooling", self._cooled)
            if self.cpu_s - saved > _SAVE_S:
                self._save("cooling", length)
                saved = self.cpu_s
        self._save("cooling", length)

    def _step(self, rate: float, over: float) -> None:
        stage = self._stage
        groups = [group for optimizer in stage.optimizers for group in optimizer.param_groups]
        for group, full in zip(groups, self._rates, strict=True):
            group["lr"] = full * rate
        loss, figures = stage.loss(self._rng, over)
        for optimizer in stage.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(stage.clipped, 1.0)
        for optimizer in stage.optimizers:
            optimizer.step()
        self._figures.append({"loss": float(loss.detach()), **figures})

    def _log(self, part: str, step: int) -> None:
        """A line of means for people; after an interruption some steps come twice."""
        if step % _LOG:
            return
        names = sorted({name for figures in self._figures for name in figures})
        means = {}
        for name in names:
            values = [figures[name] for figures in self._figures if name in figures]
            means[name] = round(sum(values) / len(values), 5)
        self._figures.clear()
        line = {"part": part, "step": step, "cpu_s": round(self.cpu_s, 1), **means}
        with (self._folder / f"{self._stage.name}.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def _file(self, part: str) -> Path:
        return self._folder / f"{self._stage.name}-{part}.pt"

    def _save(self, part: str, length: int = 0) -> None:
        state = {
            "model": self._stage.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._stage.optimizers],
            "memory": self._stage.memory,
            "random": self._rng.getstate(),
            "torch": torch.get_rng_state(),
            "origin": self._origin,
            "steps": self.steps,
            "cooled": self._cooled,
            "length": length,
            "cpu_s": self.cpu_s,
        }
        save(state, self._file(part))

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["origin"] != self._origin:
            raise Unfinished(
                f"{self._folder} holds {self._stage.name} of {state['origin']}, not of {self._origin}: "
                f"remove {self._stage.name}-*.pt, or take another folder"
            )
        self._stage.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self._stage.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        if self._stage.memory is not None:
            self._stage.memory.clear()
            self._stage.memory.update(state["memory"])
        self._rng.setstate(state["random"])
        torch.set_rng_state(state["torch"])
        self.steps, self._cooled, self.cpu_s = state["steps"], state["cooled"], state["cpu_s"]


def weights(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """What the stage has learned: its cooled weights. Raises Unfinished while there are none."""
    found: dict[str, torch.Tensor] = _cooled(name, folder)["model"]
    return found


def spent(name: str, folder: Path) -> tuple[int, float]:
    """Steps and CPU seconds of the stage, cooling included. Raises Unfinished while it has not cooled."""
    state = _cooled(name, folder)
    return state["steps"] + state["length"], state["cpu_s"]


def _cooled(name: str, folder: Path) -> Mapping[str, Any]:
    file = folder / f"{name}-cooling.pt"
    if not file.exists():
        raise Unfinished(f"{name} has not been trained: there is no {file}")
    state = _read(file)
    if state["cooled"] < state["length"]:
        raise Unfinished(f"{name} stands at step {state['cooled']} of {state['length']} of its cooling")
    return state


def digest(learned: Mapping[str, torch.Tensor]) -> str:
    """A name for weights."""
    found = hashlib.sha256()
    for key in sorted(learned):
        found.update(key.encode())
        found.update(learned[key].contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _read(file: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def save(state: dict[str, Any], file: Path) -> None:
    """Write a file whole or not at all."""
    half = file.with_suffix(".half")
    with half.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    half.replace(file)
