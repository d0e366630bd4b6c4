"""The reference: diffusers' own pipeline on the same weights, in float32."""

import pytest
import torch

from app.bench.reference import load
from app.dit.engine import DitEngine

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


@pytest.fixture(scope="session")
def pipelines(demo_checkpoint, tiny_checkpoint):
    return {"demo": load(demo_checkpoint), "tiny": load(tiny_checkpoint)}


@pytest.fixture(scope="session")
def engines(demo_checkpoint, tiny_checkpoint):
    cpu = torch.device("cpu")
    return {
        "demo": DitEngine.load(demo_checkpoint, device=cpu, dtype=torch.float32),
        "tiny": DitEngine.load(tiny_checkpoint, device=cpu, dtype=torch.float32),
    }
