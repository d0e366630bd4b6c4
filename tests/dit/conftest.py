"""The reference: diffusers' own pipeline on the same weights, in float32."""

import pytest
import torch
from diffusers import GlmImagePipeline
from diffusers.utils import logging as diffusers_logging

from app.dit.engine import DitEngine

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


def _pipeline(checkpoint):
    diffusers_logging.disable_progress_bar()
    pipeline = GlmImagePipeline.from_pretrained(checkpoint.folder, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def pipelines(demo_checkpoint, tiny_checkpoint):
    return {"demo": _pipeline(demo_checkpoint), "tiny": _pipeline(tiny_checkpoint)}


@pytest.fixture(scope="session")
def engines(demo_checkpoint, tiny_checkpoint):
    cpu = torch.device("cpu")
    return {
        "demo": DitEngine.load(demo_checkpoint, device=cpu, dtype=torch.float32),
        "tiny": DitEngine.load(tiny_checkpoint, device=cpu, dtype=torch.float32),
    }
