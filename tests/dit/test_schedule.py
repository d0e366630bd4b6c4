import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift, retrieve_timesteps

from app.dit.schedule import scheduler


@pytest.mark.parametrize("image_tokens", [64, 256, 384, 4096, 16384])
@pytest.mark.parametrize("steps", [1, 12, 50])
def test_timesteps_and_sigmas_are_those_of_the_pipeline(image_tokens, steps, pipelines):
    reference = FlowMatchEulerDiscreteScheduler.from_config(pipelines["demo"].scheduler.config)
    timesteps = np.linspace(reference.config.num_train_timesteps, 1.0, steps + 1)[:-1]
    timesteps = timesteps.astype(np.int64).astype(np.float32)
    mu = calculate_shift(image_tokens, 256, 0.25, 0.75)
    retrieve_timesteps(reference, steps, "cpu", timesteps, timesteps / 1000, mu=mu)
    ours = scheduler(reference.config, steps=steps, image_tokens=image_tokens, device=torch.device("cpu"))
    assert torch.equal(ours.timesteps, reference.timesteps)
    assert torch.equal(ours.sigmas, reference.sigmas)
    assert (image_tokens == 256) == torch.allclose(ours.sigmas[:-1] * 1000, ours.timesteps) or steps == 1


def test_every_picture_gets_its_own(pipelines):
    config = pipelines["demo"].scheduler.config
    first = scheduler(config, steps=3, image_tokens=256, device=torch.device("cpu"))
    first.step(torch.zeros(1), first.timesteps[0], torch.zeros(1))
    assert scheduler(config, steps=3, image_tokens=256, device=torch.device("cpu")).step_index is None
