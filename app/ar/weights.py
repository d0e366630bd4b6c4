"""The AR checkpoint's tensors, mapped from their files: taking a part of one reads that part alone."""

from collections.abc import Mapping
from typing import Self

import torch
from safetensors import safe_open
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from app.checkpoint import Checkpoint
from app.errors import BrokenCheckpoint

_PART = "vision_language_encoder"


class Weights:
    """Tensors by the names of `GlmImageForConditionalGeneration.state_dict`, and the configuration they belong to.

    They must not be written to: with one dtype on both sides a weight in use is the mapped file itself.
    """

    def __init__(self, config: GlmImageConfig, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        self.config = config
        self._tensors = tensors
        self._source = source

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        folder = checkpoint.part(_PART)
        tensors = {}
        for path in checkpoint.weight_files(_PART):
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        return cls(GlmImageConfig.from_pretrained(folder, local_files_only=True), tensors, f"files in {folder}")

    @classmethod
    def of(cls, model: GlmImageForConditionalGeneration) -> Self:
        """Those of a model that is in memory."""
        return cls(model.config, model.state_dict(), "model")

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise BrokenCheckpoint(f"the checkpoint {self._source} lack {name}")
        return self._tensors[name]

    def get(self, name: str) -> torch.Tensor | None:
        """None where the checkpoint has none, as with biases."""
        return self._tensors.get(name)

    def fill(self, module: torch.nn.Module, prefix: str) -> None:
        """Give a module made on the meta device the tensors whose names go on after `prefix`."""
        named = {name: self[prefix + name] for name in module.state_dict()}
        module.load_state_dict(named, assign=True)
        module.eval().requires_grad_(False)
