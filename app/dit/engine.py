"""The DiT engine: paints one picture from its prior tokens, on one device or as the leader of several."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import structlog
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImageTransformer2DModel
from numpy.typing import NDArray
from PIL import Image
from transformers import ByT5Tokenizer, T5EncoderModel
from transformers.utils import logging as transformers_logging

from app.checkpoint import DIT_PARTS, Checkpoint
from app.dit.decode import Decoder
from app.dit.denoise import Denoiser
from app.dit.glyphs import GlyphEncoder
from app.dit.parallel import SINGLE, Layout, Parallel, Stopped
from app.dit.request import PaintRequest
from app.dit.step_cache import StepCache
from app.domain.prior import PriorTokens
from app.domain.sizes import Size
from app.errors import BrokenCheckpoint, Misconfigured
from app.ranks import Follower, Leader, Ranks

log = structlog.get_logger(__name__)

#: Of the edit that is painted before an engine is ready, and of its images. Equal lengths would be compiled as one.
_WARM_UP, _IMAGES = Size(256, 192), (Size(64, 96), Size(128, 32))


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine runs; the default is the plainest way.

    `step_cache` is "first-block:THRESHOLD" or None; from an area of `tile_pixels` on, pictures are decoded in tiles.
    """

    step_cache: str | None = None
    compile: bool = False
    tile_pixels: int = 2048 * 2048
    layout: Layout = SINGLE


PLAIN = Options()


class DitEngine:
    """One picture at a time, because a batch costs more than its pictures one by one. Not thread-safe."""

    def __init__(
        self,
        glyphs: GlyphEncoder,
        transformer: GlmImageTransformer2DModel,
        vae: AutoencoderKL,
        schedule: Mapping[str, Any],
        *,
        options: Options = PLAIN,
        ranks: Ranks | None = None,
    ) -> None:
        """`ranks`: the group that shares each picture, of which this process is a member."""
        self._options = options
        self._ranks = ranks
        self._parallel = None
        if options.step_cache is not None and options.layout.sp > 1:
            raise Misconfigured("a step cache and sequence parallel exclude each other: ranks would skip other steps")
        if ranks is not None:
            self._parallel = Parallel(ranks, options.layout, transformer)
        cache = StepCache(transformer, options.step_cache)
        if options.compile:
            transformer.compile_repeated_blocks(dynamic=True)
        self._denoiser = Denoiser(glyphs, transformer, vae, schedule, cache=cache, parallel=self._parallel)
        self._decoder = Decoder(vae, options.tile_pixels)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        options: Options = PLAIN,
        ranks: Ranks | None = None,
    ) -> Self:
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
        return cls(glyphs, transformer.to(device), vae.to(device), schedule, options=options, ranks=ranks)

    @property
    def step_cache(self) -> str | None:
        """The setting that pictures are painted with, for their records; None: every step is computed."""
        return self._options.step_cache

    def warm_up(self) -> None:
        """Paint small pictures, so that the first one asked for does not wait for compilers and allocators.

        Raises Misconfigured when the transformer cannot be compiled.
        """
        try:
            for request in _small_pictures():
                self.paint(request, lambda step: None)
        except (RuntimeError, OSError) as error:
            if not self._options.compile:
                raise
            reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__  # pages of advice follow
            raise Misconfigured(f"the transformer cannot be compiled: {reason}") from error

    def paint(self, request: PaintRequest, on_step: Callable[[int], None]) -> NDArray[np.uint8]:
        """The picture, [height, width, 3] RGB of the requested size.

        An edit first reads its condition images, for about the time of one step each.
        `on_step(k)` is called after denoising step k (1-based); what it raises stops the work and is passed on.
        Raises ImageFailed when the model's output is not a number.
        """
        return self.decode(self.denoise(request, on_step), request.size)

    def denoise(self, request: PaintRequest, on_step: Callable[[int], None]) -> torch.Tensor:
        """The first part of `paint`: the latents, [1, channels, height/8, width/8] of the inside size."""
        if self._parallel is None:
            return self._denoiser.latents(request, on_step)
        if isinstance(self._ranks, Leader):
            self._ranks.tell(request.to_json())
        try:
            return self._denoiser.latents(request, self._parallel.step(on_step))
        except Stopped as stopped:
            raise stopped.__cause__ or stopped from None
        except BaseException:
            # The others wait in a collective for a rank that will not come: only a fresh group can go on.
            log.critical("rank_failed", exc_info=True)
            os._exit(1)

    @torch.inference_mode()
    def decode(self, latents: torch.Tensor, size: Size) -> NDArray[np.uint8]:
        """The second part of `paint`, by one rank alone."""
        return self._decoder.pixels(latents, size)

    def close(self) -> None:
        """Let the other ranks end."""
        if isinstance(self._ranks, Leader):
            self._ranks.close()

    def follow(self, orders: Follower) -> None:
        """Share the leader's pictures until it ends."""
        for order in orders.orders():
            with suppress(Stopped):
                self.denoise(PaintRequest.from_json(order), lambda step: None)


def _weights(kind: Any, checkpoint: Checkpoint, part: str, **options: Any) -> Any:  # noqa: ANN401
    """A part by its class's `from_pretrained`. Weights missing from the files would be drawn at random, so check."""
    folder = checkpoint.part(part)
    model, report = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True, **options)
    if report["missing_keys"]:
        raise BrokenCheckpoint(f"the checkpoint files in {folder} lack {sorted(report['missing_keys'])[0]}")
    return model.eval()


def _small_pictures() -> Iterator[PaintRequest]:
    """With what a compiler makes programs of its own for: guidance, glyphs or none, a first and a later image."""
    plain = PaintRequest('"warm-up"', _WARM_UP, _blank(_WARM_UP), seed=0, steps=1, guidance_scale=2.0)
    edit = replace(
        plain,
        images=tuple(Image.new("RGB", (size.width, size.height)) for size in _IMAGES),
        condition=tuple(_blank(size) for size in _IMAGES),
    )
    yield from (plain, edit, replace(edit, prompt=""))


def _blank(size: Size) -> PriorTokens:
    return PriorTokens(size.large_grid, (0,) * size.large_grid.tokens)
