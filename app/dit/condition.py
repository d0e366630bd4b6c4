"""Condition images of an edit, as keys and values that the denoising steps look back at.

Source: `GlmImagePipeline.__call__`, "Prepare latents and (optional) image kv cache".
"""

from typing import Literal

import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from PIL.Image import Image

from app.domain.prior import PriorTokens


class Memory:
    """What the transformer remembers of a picture's condition images; of none, nothing."""

    def __init__(self, transformer: GlmImageTransformer2DModel, vae: AutoencoderKL) -> None:
        self._transformer = transformer
        self._vae = vae
        scale = 2 ** (len(vae.config.block_out_channels) - 1)
        self._processor = VaeImageProcessor(vae_scale_factor=scale)
        self._multiple: int = scale * transformer.config.patch_size
        self._cache = GlmImageKVCache(num_layers=transformer.config.num_layers)

    def cache(self, mode: Literal["read", "skip"]) -> GlmImageKVCache:
        """For one pass: the guided branch reads the images, the other must know nothing of them."""
        self._cache.set_mode(mode)
        return self._cache

    def write(self, image: Image, condition: PriorTokens) -> None:
        """Add an image: one pass over its latents and its plan, at time 0 and without glyphs."""
        transformer, device, dtype = self._transformer, self._transformer.device, self._transformer.dtype
        latents = self._latents(image)
        prior = upsampled(condition).to(device)
        self._cache.set_mode("write")
        transformer(
            hidden_states=latents.to(dtype),
            encoder_hidden_states=torch.zeros((1, 0, transformer.config.text_embed_dim), device=device, dtype=dtype),
            prior_token_id=prior,
            prior_token_drop=torch.zeros_like(prior, dtype=torch.bool),
            timestep=torch.zeros(1, device=device),
            # As whole numbers, unlike the target's size, which half precision rounds.
            target_size=torch.tensor([self._size(image)], device=device),
            crop_coords=torch.zeros((1, 2), device=device),
            kv_caches=self._cache,
            return_dict=False,
        )

    def close(self) -> None:
        """Free the memory now, whoever still holds this object."""
        self._cache.clear()

    def _size(self, image: Image) -> tuple[int, int]:
        """Height and width, rounded down to whole latents patches."""
        multiple = self._multiple
        return image.height // multiple * multiple, image.width // multiple * multiple

    def _latents(self, image: Image) -> torch.Tensor:
        config, device, dtype = self._vae.config, self._vae.device, self._vae.dtype
        height, width = self._size(image)
        pixels = self._processor.preprocess(image, height=height, width=width).to(device, dtype)
        mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1).to(device, dtype)
        deviation = torch.tensor(config.latents_std).view(1, -1, 1, 1).to(device, dtype)
        # The most likely latents, not drawn ones: an edit must not depend on a second seed.
        latents: torch.Tensor = (self._vae.encode(pixels).latent_dist.mode() - mean) / deviation
        return latents


def upsampled(prior: PriorTokens) -> torch.Tensor:
    """The ids by patch, [1, patches]: a prior token covers 32 pixels and a patch 16."""
    grid = torch.tensor(prior.ids).view(prior.grid.height, prior.grid.width)
    # On the CPU: torch_npu cannot interpolate by a factor.
    return grid.repeat_interleave(2, dim=0).repeat_interleave(2, dim=1).view(1, -1)
