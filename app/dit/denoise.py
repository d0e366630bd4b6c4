"""Denoising: from noise to latents, as `GlmImagePipeline` does when it is handed the prior tokens."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from diffusers.utils.torch_utils import randn_tensor

from app import devices
from app.dit.condition import Memory, patches, upsampled
from app.dit.glyphs import GlyphEncoder
from app.dit.parallel import Parallel
from app.dit.request import PaintRequest
from app.dit.schedule import scheduler
from app.dit.step_cache import StepCache
from app.dit.ulysses import Rotary
from app.domain.prior import PriorTokens
from app.domain.sizes import Size


@dataclass(frozen=True, slots=True)
class _Branch:
    """What the transformer is told besides the latents and the time; the same at every step of a picture."""

    name: str
    glyphs: torch.Tensor
    prior: torch.Tensor
    drop_prior: torch.Tensor
    size: torch.Tensor
    crop: torch.Tensor
    rotary: Rotary
    #: The conditional branch sees the condition images, the other must know nothing of them.
    sees_images: bool


class Denoiser:
    """One picture at a time. In a group every rank runs the same loop on its share and ends with the same latents."""

    def __init__(
        self,
        glyphs: GlyphEncoder,
        transformer: GlmImageTransformer2DModel,
        vae: AutoencoderKL,
        schedule: Mapping[str, Any],
        *,
        cache: StepCache,
        parallel: Parallel | None,
    ) -> None:
        self._glyphs = glyphs
        self._transformer = transformer
        self._vae = vae
        self._schedule = schedule
        self._cache = cache
        self._parallel = parallel
        self._device: torch.device = transformer.device
        self._dtype: torch.dtype = transformer.dtype
        self._scale = 2 ** (len(vae.config.block_out_channels) - 1)
        with torch.inference_mode():
            self._no_glyphs = glyphs.encode("").to(self._dtype)

    @torch.inference_mode()
    def latents(self, request: PaintRequest, on_step: Callable[[int], None]) -> torch.Tensor:
        """The picture's latents, [1, channels, height/8, width/8] of the inside size, in float32.

        `on_step(k)` is called after denoising step k (1-based); what it raises stops the work and is passed on.
        """
        latents = self._noise(request.size.inside, request.seed)
        branches = self._branches(request, latents)
        schedule = scheduler(
            self._schedule, steps=request.steps, image_tokens=patches(request.prior), device=self._device
        )
        # Closed, not left to go: the trace of an error that stops the work would hold gigabytes.
        with closing(Memory(self._transformer, self._vae)) as memory, self._cache.emptied():
            if branches[0].sees_images:
                self._read(request, memory)
            for step, time in enumerate(schedule.timesteps, start=1):
                flows = [self._flow(latents, time, branch, memory) for branch in branches]
                flow = self._guided(flows, request.guidance_scale)
                latents = schedule.step(flow, time, latents, return_dict=False)[0]
                on_step(step)
        return latents

    def _noise(self, inside: Size, seed: int) -> torch.Tensor:
        """Drawn on the CPU and moved, so that a seed means the same picture on every device."""
        shape = (1, self._transformer.config.in_channels, inside.height // self._scale, inside.width // self._scale)
        noise: torch.Tensor = randn_tensor(
            shape, generator=devices.generator(seed), device=self._device, dtype=self._dtype
        )
        return noise

    def _branches(self, request: PaintRequest, latents: torch.Tensor) -> list[_Branch]:
        """Those that this rank computes: both, or the one that is its own, or, without guidance, the only one."""
        guided, inside = request.guidance_scale > 1, request.size.inside
        mine = self._parallel.branch if self._parallel is not None else None
        make, branches = partial(self._branch, request.prior, inside, self._rotary(latents)), []
        if mine != 1 or not guided:
            branches.append(make("conditional", self._glyphs.encode(request.prompt)))
        if mine != 0 and guided:
            branches.append(make("unconditional", self._no_glyphs))
        return branches

    def _branch(self, prior: PriorTokens, inside: Size, rotary: Rotary, name: str, glyphs: torch.Tensor) -> _Branch:
        ids = self._ids(prior)
        bare = name == "unconditional"  # without a plan, glyphs and images
        return _Branch(
            name=name,
            glyphs=glyphs.to(self._dtype),
            prior=ids,
            drop_prior=torch.full_like(ids, bare, dtype=torch.bool),
            size=torch.tensor([[inside.height, inside.width]], dtype=self._dtype, device=self._device),
            crop=torch.zeros((1, 2), dtype=self._dtype, device=self._device),
            rotary=rotary,
            sees_images=not bare,
        )

    def _ids(self, prior: PriorTokens) -> torch.Tensor:
        return self._share(upsampled(prior), 1)

    def _rotary(self, latents: torch.Tensor) -> Rotary:
        cosine, sine = self._transformer.rope(latents)  # made on the CPU; left to itself, at every step anew
        return self._share(cosine, 0), self._share(sine, 0)

    def _share(self, by_patch: torch.Tensor, dimension: int) -> torch.Tensor:
        mine = by_patch if self._parallel is None else self._parallel.share(by_patch, dimension)
        return mine.to(self._device)

    def _read(self, request: PaintRequest, memory: Memory) -> None:
        for image, condition in zip(request.images, request.condition, strict=True):
            latents = memory.latents(image)
            with self._cache.computed():
                memory.write(latents, self._ids(condition), self._rotary(latents))

    def _flow(self, latents: torch.Tensor, time: torch.Tensor, branch: _Branch, memory: Memory) -> torch.Tensor:
        with self._cache.branch(branch.name):
            predicted: torch.Tensor = self._transformer(
                hidden_states=latents.to(self._dtype),
                encoder_hidden_states=branch.glyphs,
                prior_token_id=branch.prior,
                prior_token_drop=branch.drop_prior,
                timestep=time.expand(1) - 1,
                target_size=branch.size,
                crop_coords=branch.crop,
                image_rotary_emb=branch.rotary,
                kv_caches=memory.read() if branch.sees_images else None,
                return_dict=False,
            )[0]
        return predicted.float()

    def _guided(self, flows: list[torch.Tensor], guidance_scale: float) -> torch.Tensor:
        if guidance_scale <= 1:
            return flows[0]
        if self._parallel is not None and self._parallel.branch is not None:
            flows = self._parallel.both(flows[0])
        flow, unguided = flows
        return unguided + guidance_scale * (flow - unguided)
