"""What the DiT engine is measured against: diffusers' pipeline, and a bare loop over its parts."""

from typing import Any, TypeAlias

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline
from diffusers.utils import logging as diffusers_logging
from numpy.typing import NDArray

from app.checkpoint import Checkpoint
from app.dit.request import PaintRequest
from app.dit.schedule import scheduler
from app.domain.prior import PriorTokens

#: A name that says no more than diffusers does, which has no types.
Pipeline: TypeAlias = Any


def load(checkpoint: Checkpoint) -> Pipeline:
    """The stock pipeline in float32, quiet."""
    diffusers_logging.disable_progress_bar()
    pipeline = GlmImagePipeline.from_pretrained(checkpoint.folder, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def picture(pipeline: Pipeline, request: PaintRequest) -> NDArray[np.uint8]:
    """The pipeline's picture from the same plan, cut to the requested size.

    Smallest shim: the stock image-to-image of this version pair fails where it makes ids of its images, so it is handed
    those ids, as it is handed the plan, and that part is not reached.
    """
    inside, size = request.size.inside, request.size
    given = {}
    if request.images:
        grids = [[1, 2 * prior.grid.height, 2 * prior.grid.width] for prior in request.condition]
        given = {
            "image": list(request.images),
            "prior_token_image_ids": [torch.cat([_by_patch(pipeline, prior)[0] for prior in request.condition])],
            "source_image_grid_thw": [torch.tensor(grids)],
        }
    image = pipeline(
        prompt=request.prompt,
        prior_token_ids=_by_patch(pipeline, request.prior),
        height=inside.height,
        width=inside.width,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(request.seed),
        **given,
    ).images[0]
    left, top = (image.width - size.width) // 2, (image.height - size.height) // 2
    return np.asarray(image.crop((left, top, left + size.width, top + size.height)))


class BareLoop:
    """Denoising and VAE decode of text-to-image and nothing else; all that stays the same is made once, outside."""

    def __init__(self, pipeline: Pipeline, request: PaintRequest) -> None:
        self._pipeline = pipeline
        self._request = request
        with torch.inference_mode():
            self._glyphs = [pipeline._get_glyph_embeds(prompt) for prompt in (request.prompt, "")]
        self._prior = _by_patch(pipeline, request.prior)
        inside = request.size.inside
        self._latents = torch.randn(1, pipeline.transformer.config.in_channels, inside.height // 8, inside.width // 8)
        self._rotary = pipeline.transformer.rope(self._latents)
        config = pipeline.vae.config
        self._mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1)
        self._deviation = torch.tensor(config.latents_std).view(1, -1, 1, 1)

    @torch.inference_mode()
    def run(self) -> torch.Tensor:
        """One picture, [1, 3, height, width] from -1 to 1."""
        latents, schedule = self._latents, self._schedule()
        for time in schedule.timesteps:
            flow, unguided = self._flow(latents, time, drop=False), self._flow(latents, time, drop=True)
            flow = unguided + self._request.guidance_scale * (flow - unguided)
            latents = schedule.step(flow, time, latents, return_dict=False)[0]
        decoded: torch.Tensor = self._pipeline.vae.decode(latents * self._deviation + self._mean, return_dict=False)[0]
        return decoded

    def _flow(self, latents: torch.Tensor, time: torch.Tensor, *, drop: bool) -> torch.Tensor:
        inside = self._request.size.inside
        flow: torch.Tensor = self._pipeline.transformer(
            hidden_states=latents,
            encoder_hidden_states=self._glyphs[drop],
            prior_token_id=self._prior,
            prior_token_drop=torch.full_like(self._prior, drop, dtype=torch.bool),
            timestep=time.expand(1) - 1,
            target_size=torch.tensor([[inside.height, inside.width]], dtype=torch.float32),
            crop_coords=torch.zeros((1, 2)),
            image_rotary_emb=self._rotary,
            return_dict=False,
        )[0]
        return flow

    def _schedule(self) -> FlowMatchEulerDiscreteScheduler:
        tokens = self._prior.shape[1]
        config = self._pipeline.scheduler.config
        return scheduler(config, steps=self._request.steps, image_tokens=tokens, device=self._latents.device)


def _by_patch(pipeline: Pipeline, prior: PriorTokens) -> torch.Tensor:
    ids: torch.Tensor = pipeline._upsample_token_ids(torch.tensor(prior.ids), prior.grid.height, prior.grid.width)
    return ids
