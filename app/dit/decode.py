"""From latents to pixels, by the VAE."""

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray

from app.domain.sizes import Size
from app.errors import ImageFailed


class Decoder:
    """Pictures of at least `tile_pixels` (width * height) are decoded in overlapping tiles, whose rims are blended.

    That bounds the memory by a tile's, and changes pixels a little: a tile does not see the rest of the picture.
    """

    def __init__(self, vae: AutoencoderKL, tile_pixels: int) -> None:
        self._vae = vae
        self._tile_pixels = tile_pixels

    def pixels(self, latents: torch.Tensor, size: Size) -> NDArray[np.uint8]:
        """[height, width, 3] RGB, the centre of what the latents [1, channels, height/8, width/8] show.

        Raises ImageFailed when the picture is not a number.
        """
        vae = self._vae
        config, device, dtype = vae.config, vae.device, vae.dtype
        mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1).to(device, dtype)
        deviation = torch.tensor(config.latents_std).view(1, -1, 1, 1).to(device, dtype)
        vae.use_tiling = size.inside.pixels >= self._tile_pixels
        try:
            picture = vae.decode(latents.to(dtype) * deviation + mean, return_dict=False)[0]
        finally:
            vae.use_tiling = False  # condition images are encoded whole
        picture = (picture * 0.5 + 0.5).clamp(0, 1)[0].permute(1, 2, 0).cpu().float().numpy()
        if not np.isfinite(picture).all():  # NaN latents give a NaN picture, and so does a VAE that overflows
            raise ImageFailed("nan_output", "the picture came out as not a number", retryable=True)
        return _cropped((picture * 255).round().astype(np.uint8), size)


def _cropped(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """The centre; contiguous, because a view would keep the whole picture alive."""
    top, left = (pixels.shape[0] - size.height) // 2, (pixels.shape[1] - size.width) // 2
    return np.ascontiguousarray(pixels[top : top + size.height, left : left + size.width])
