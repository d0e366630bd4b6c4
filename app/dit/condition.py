"""Condition images of an edit, as keys and values that the denoising steps look back at.

Source: `GlmImagePipeline.__call__`, "Prepare latents and (optional) image kv cache".
"""

import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from PIL.Image import Image

from app.dit.ulysses import Rotary
from app.domain.prior import PriorTokens


class Memory:
    """What the transformer remembers of a picture's condition images; of none, nothing."""

    def __init__(self, transformer: GlmImageTransformer2DModel, vae: AutoencoderKL) -> None:
        self._transformer = transformer
        self._vae = vae
        self._scale = 2 ** (len(vae.config.block_out_channels) - 1)
        self._processor = VaeImageProcessor(vae_scale_factor=self._scale)
        self._cache = GlmImageKVCache(num_layers=transformer.config.num_layers)
        self._empty = True

    def read(self) -> GlmImageKVCache | None:
        """For a pass that looks at the images; None when there are none."""
        if self._empty:
            return None
        self._cache.set_mode("read")
        return self._cache

    def write(self, latents: torch.Tensor, prior: torch.Tensor, rotary: Rotary) -> None:
        """Add an image: one pass over its latents and its ids and positions by patch, at time 0 and without glyphs."""
        transformer, device, dtype = self._transformer, self._transformer.device, self._transformer.dtype
        size = [side * self._scale for side in latents.shape[2:]]
        self._cache.set_mode("write")
        self._empty = False
        transformer(
            hidden_states=latents.to(dtype),
            encoder_hidden_states=torch.zeros((1, 0, transformer.config.text_embed_dim), device=device, dtype=dtype),
            prior_token_id=prior,
            prior_token_drop=torch.zeros_like(prior, dtype=torch.bool),
            timestep=torch.zeros(1, device=device),
            # As whole numbers, unlike the target's size, which half precision rounds.
            target_size=torch.tensor([size], device=device),
            crop_coords=torch.zeros((1, 2), device=device),
            image_rotary_emb=rotary,
            kv_caches=self._cache,
            return_dict=False,
        )

    def close(self) -> None:
        """Free the memory now, whoever still holds this object."""
        self._cache.clear()

    def latents(self, image: Image) -> torch.Tensor:
        """The most likely latents, not drawn ones: an edit must not depend on a second seed."""
        config, device, dtype = self._vae.config, self._vae.device, self._vae.dtype
        multiple = self._scale * self._transformer.config.patch_size
        height, width = image.height // multiple * multiple, image.width // multiple * multiple
        pixels = self._processor.preprocess(image, height=height, width=width).to(device, dtype)
        mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1).to(device, dtype)
        deviation = torch.tensor(config.latents_std).view(1, -1, 1, 1).to(device, dtype)
        latents: torch.Tensor = (self._vae.encode(pixels).latent_dist.mode() - mean) / deviation
        return latents


def patches(prior: PriorTokens) -> int:
    """How many patches a plan covers: a prior token is 32 pixels wide and a patch 16."""
    return 4 * prior.grid.tokens


def upsampled(prior: PriorTokens) -> torch.Tensor:
    """The ids by patch, [1, patches]."""
    grid = torch.tensor(prior.ids).view(prior.grid.height, prior.grid.width)
    # On the CPU: torch_npu cannot interpolate by a factor.
    return grid.repeat_interleave(2, dim=0).repeat_interleave(2, dim=1).view(1, -1)
