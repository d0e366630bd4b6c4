"""Timesteps and sigmas of one picture. Source: `GlmImagePipeline.__call__`, "Prepare timesteps"."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler


def scheduler(
    config: Mapping[str, Any], *, steps: int, image_tokens: int, device: torch.device
) -> FlowMatchEulerDiscreteScheduler:
    """A fresh scheduler, ready for `steps` steps over `image_tokens` patches; never shared, it counts its steps.

    Both timesteps and sigmas are passed, so that they part: the DiT is told the plain timesteps (less one), while the
    latents follow sigmas that are shifted by `mu`. At 256 image tokens `mu` is 1 and the two agree.
    """
    train_steps = config["num_train_timesteps"]
    timesteps = np.linspace(train_steps, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
    made = FlowMatchEulerDiscreteScheduler.from_config(config)
    made.set_timesteps(timesteps=timesteps, sigmas=timesteps / train_steps, device=device, mu=_mu(config, image_tokens))
    return made


def _mu(config: Mapping[str, Any], image_tokens: int) -> float:
    root = math.sqrt(image_tokens / config.get("base_image_seq_len", 256))
    return float(root * config.get("max_shift", 0.75) + config.get("base_shift", 0.25))
