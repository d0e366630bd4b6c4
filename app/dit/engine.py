"""The DiT engine: paints one picture from its prior tokens, as `GlmImagePipeline` does when it is handed them."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImageTransformer2DModel
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from diffusers.utils.torch_utils import randn_tensor
from numpy.typing import NDArray
from transformers import ByT5Tokenizer, T5EncoderModel
from transformers.utils import logging as transformers_logging

from app.checkpoint import DIT_PARTS, Checkpoint
from app.dit.condition import Memory, upsampled
from app.dit.glyphs import GlyphEncoder
from app.dit.request import PaintRequest
from app.dit.schedule import scheduler
from app.domain.prior import PriorTokens
from app.domain.sizes import Size
from app.errors import BrokenCheckpoint, ImageFailed


@dataclass(frozen=True, slots=True)
class _Conditions:
    """What the transformer is told besides the latents and the time; the same at every step of a picture."""

    glyphs: torch.Tensor
    prior: torch.Tensor
    drop_prior: torch.Tensor
    size: torch.Tensor
    crop: torch.Tensor
    rotary: tuple[torch.Tensor, torch.Tensor]


class DitEngine:
    """One picture at a time, because a batch costs more than its pictures one by one. Not thread-safe."""

    def __init__(
        self,
        glyphs: GlyphEncoder,
        transformer: GlmImageTransformer2DModel,
        vae: AutoencoderKL,
        schedule: Mapping[str, Any],
    ) -> None:
        self._glyphs = glyphs
        self._transformer = transformer
        self._vae = vae
        self._schedule = schedule
        self._device: torch.device = transformer.device
        self._dtype: torch.dtype = transformer.dtype
        self._scale = 2 ** (len(vae.config.block_out_channels) - 1)
        with torch.inference_mode():
            self._no_glyphs = glyphs.encode("").to(self._dtype)

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Self:
        """Load all parts but the AR model. Raises BrokenCheckpoint for missing or damaged files."""
        checkpoint.verify(DIT_PARTS)
        transformers_logging.disable_progress_bar()
        # The VAE overflows in float16: black pictures.
        vae_dtype = torch.float32 if dtype == torch.float16 else dtype
        tokenizer = ByT5Tokenizer.from_pretrained(checkpoint.part("tokenizer"), local_files_only=True)
        encoder = _weights(T5EncoderModel, checkpoint, "text_encoder", dtype=dtype)
        transformer = _weights(GlmImageTransformer2DModel, checkpoint, "transformer", dtype=dtype)
        vae = _weights(AutoencoderKL, checkpoint, "vae", dtype=vae_dtype)
        schedule = FlowMatchEulerDiscreteScheduler.load_config(checkpoint.part("scheduler"), local_files_only=True)
        glyphs = GlyphEncoder(tokenizer, encoder.to(device))
        return cls(glyphs, transformer.to(device), vae.to(device), schedule)

    @torch.inference_mode()
    def paint(self, request: PaintRequest, on_step: Callable[[int], None]) -> NDArray[np.uint8]:
        """The picture, [height, width, 3] RGB of the requested size.

        An edit first reads its condition images, for about the time of one step each.
        `on_step(k)` is called after denoising step k (1-based); what it raises stops the work and is passed on.
        Raises ImageFailed when the model's output is not a number.
        """
        inside = request.size.inside
        latents = self._noise(inside, request.seed)
        plan = self._conditions(request.prior, inside, latents, self._glyphs.encode(request.prompt), drop=False)
        bare = None  # without a plan and glyphs, for guidance
        if request.guidance_scale > 1:
            bare = self._conditions(request.prior, inside, latents, self._no_glyphs, drop=True)
        patches = plan.prior.shape[1]
        schedule = scheduler(self._schedule, steps=request.steps, image_tokens=patches, device=self._device)
        # Closed, not left to go: the trace of an error that stops the work would hold gigabytes.
        with closing(Memory(self._transformer, self._vae)) as memory:
            for image, condition in zip(request.images, request.condition, strict=True):
                memory.write(image, condition)
            for step, time in enumerate(schedule.timesteps, start=1):
                flow = self._flow(latents, time, plan, memory.cache("read"))
                if bare is not None:
                    unguided = self._flow(latents, time, bare, memory.cache("skip"))
                    flow = unguided + request.guidance_scale * (flow - unguided)
                latents = schedule.step(flow, time, latents, return_dict=False)[0]
                on_step(step)
        return _cropped(self._decode(latents), request.size)

    def _noise(self, inside: Size, seed: int) -> torch.Tensor:
        """Drawn on the CPU and moved, so that a seed means the same picture on every device."""
        shape = (1, self._transformer.config.in_channels, inside.height // self._scale, inside.width // self._scale)
        generator = torch.Generator("cpu").manual_seed(seed)
        noise: torch.Tensor = randn_tensor(shape, generator=generator, device=self._device, dtype=self._dtype)
        return noise

    def _conditions(
        self, prior: PriorTokens, inside: Size, latents: torch.Tensor, glyphs: torch.Tensor, *, drop: bool
    ) -> _Conditions:
        patches = upsampled(prior).to(self._device)
        cosine, sine = self._transformer.rope(latents)  # made on the CPU; left to itself, at every step anew
        return _Conditions(
            glyphs=glyphs.to(self._dtype),
            prior=patches,
            drop_prior=torch.full_like(patches, drop, dtype=torch.bool),
            size=torch.tensor([[inside.height, inside.width]], dtype=self._dtype, device=self._device),
            crop=torch.zeros((1, 2), dtype=self._dtype, device=self._device),
            rotary=(cosine.to(self._device), sine.to(self._device)),
        )

    def _flow(
        self, latents: torch.Tensor, time: torch.Tensor, conditions: _Conditions, images: GlmImageKVCache
    ) -> torch.Tensor:
        predicted: torch.Tensor = self._transformer(
            hidden_states=latents.to(self._dtype),
            encoder_hidden_states=conditions.glyphs,
            prior_token_id=conditions.prior,
            prior_token_drop=conditions.drop_prior,
            timestep=time.expand(1) - 1,
            target_size=conditions.size,
            crop_coords=conditions.crop,
            image_rotary_emb=conditions.rotary,
            kv_caches=images,
            return_dict=False,
        )[0]
        return predicted.float()

    def _decode(self, latents: torch.Tensor) -> NDArray[np.uint8]:
        config, dtype = self._vae.config, self._vae.dtype
        mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1).to(self._device, dtype)
        deviation = torch.tensor(config.latents_std).view(1, -1, 1, 1).to(self._device, dtype)
        picture = self._vae.decode(latents.to(dtype) * deviation + mean, return_dict=False)[0]
        picture = (picture * 0.5 + 0.5).clamp(0, 1)[0].permute(1, 2, 0).cpu().float().numpy()
        if not np.isfinite(picture).all():  # NaN latents give a NaN picture, and so does a VAE that overflows
            raise ImageFailed("nan_output", "the picture came out as not a number", retryable=True)
        pixels: NDArray[np.uint8] = (picture * 255).round().astype(np.uint8)
        return pixels


def _weights(kind: Any, checkpoint: Checkpoint, part: str, **options: Any) -> Any:  # noqa: ANN401
    """A part by its class's `from_pretrained`. Weights missing from the files would be drawn at random, so check."""
    folder = checkpoint.part(part)
    model, report = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise BrokenCheckpoint(f"the checkpoint files in {folder} lack {sorted(report['missing_keys'])[0]}")
    return model.eval()


def _cropped(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """The centre; contiguous, because a view would keep the whole picture alive."""
    top, left = (pixels.shape[0] - size.height) // 2, (pixels.shape[1] - size.width) // 2
    return np.ascontiguousarray(pixels[top : top + size.height, left : left + size.width])
