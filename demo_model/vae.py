"""The VAE: a small `AutoencoderKL` that learns flat colours and straight edges from crops of drawings."""

import random

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import nn

from demo_model import samples
from demo_model.samples import SIDES, Sample
from demo_model.training import Figures, Stage

#: Latent channels; a latent is eight pixels a side.
CHANNELS = 8
_BATCH, _CROP = 8, 64
#: Sides in cells of pictures with small shapes.
_SMALL = (4, 5, 6)
#: Seed and number of the pictures that the latents' mean and standard deviation are taken from.
MEASURE_SEED, _MEASURED = 7, 80


def build() -> AutoencoderKL:
    """Untrained. It starts as a linear pyramid that keeps its input's scale: the residual branches are zero."""
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[16, 24, 32, 48],
        layers_per_block=1,
        latent_channels=CHANNELS,
        norm_num_groups=1,  # more groups would normalise flat colours away
        sample_size=256,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )
    for name, module in vae.named_modules():
        # The usual initialisation makes the linear path's output 25 times smaller than its input.
        if isinstance(module, nn.Conv2d) and ("resnets" not in name or name.endswith("conv_shortcut")):
            nn.init.normal_(module.weight, 0, module.weight[0].numel() ** -0.5)
            nn.init.zeros_(module.get_parameter("bias"))
        if name.endswith("conv2"):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    last = vae.encoder.conv_out  # means and log variances: hardly any noise while there is nothing to be seen yet
    with torch.no_grad():
        last.weight[CHANNELS:], last.bias[CHANNELS:] = 0.0, -6.0
    return vae.to(memory_format=torch.channels_last)


def stage(seed: int) -> Stage:
    torch.manual_seed(seed)
    vae = build()
    parameters = tuple(vae.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)

    def loss(rng: random.Random, _over: float) -> tuple[torch.Tensor, Figures]:
        pixels = torch.stack([_crop(rng, SIDES[:7]) for _ in range(_BATCH)]).contiguous(
            memory_format=torch.channels_last
        )
        posterior = vae.encode(pixels).latent_dist
        off, edges, square = _errors(vae.decode(posterior.sample()).sample - pixels)
        spread = posterior.kl().mean() / (_CROP * _CROP / 64 * CHANNELS)
        total = off + 0.5 * edges + 0.5 * square + 1e-3 * spread
        return total, {"l1": float(off.detach()), "edges": float(edges.detach()), "kl": float(spread.detach())}

    return Stage("vae", vae, (optimizer,), parameters, loss)


def decoder_stage(seed: int, coder: AutoencoderKL) -> Stage:
    """The decoder alone, trained on while latents stay what they are. Half of the crops are of small shapes."""
    torch.manual_seed(seed)
    coder.requires_grad_(False)
    decoder = coder.decoder.to(memory_format=torch.channels_last).requires_grad_(True)
    parameters = tuple(decoder.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)

    def loss(rng: random.Random, _over: float) -> tuple[torch.Tensor, Figures]:
        sides = [_SMALL if number % 2 else SIDES[:7] for number in range(_BATCH)]
        pixels = torch.stack([_crop(rng, choice) for choice in sides]).contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            latents = coder.encode(pixels).latent_dist.sample()
        off, edges, square = _errors(decoder(latents) - pixels)
        return off + 0.5 * edges + 0.5 * square, {"l1": float(off.detach()), "edges": float(edges.detach())}

    return Stage("decoder", decoder, (optimizer,), parameters, loss)


def _errors(error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By pixel, between neighbours, and squared."""
    between = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean(), between, error.square().mean()


def tensor(sample: Sample) -> torch.Tensor:
    """The picture as the VAE takes it: [3, height, width], -1 to 1."""
    return torch.from_numpy(np.array(sample.picture())).permute(2, 0, 1).float() / 127.5 - 1


@torch.no_grad()
def measure(vae: AutoencoderKL, seed: int) -> None:
    """Set the mean and the standard deviation of the latents' channels in the VAE's config, from whole pictures."""
    rng = random.Random(seed)  # noqa: S311
    pictures = (samples.sample(rng, rng.choice(SIDES[:7]), rng.choice(SIDES[:7])) for _ in range(_MEASURED))
    latents = torch.cat([vae.encode(tensor(p)[None]).latent_dist.mode()[0].flatten(1) for p in pictures], 1)
    mean, std = latents.mean(1), latents.std(1)
    vae.register_to_config(
        latents_mean=[round(value, 5) for value in mean.tolist()],
        latents_std=[round(value, 5) for value in std.tolist()],
    )


def _crop(rng: random.Random, sides: tuple[int, ...]) -> torch.Tensor:
    """A piece of a picture with such sides, mostly one with an edge in it."""
    whole = tensor(samples.sample(rng, rng.choice(sides), rng.choice(sides)))
    _, height, width = whole.shape
    for _ in range(4):
        top, left = (rng.randrange(0, side - _CROP + 1, 8) for side in (height, width))
        piece = whole[:, top : top + _CROP, left : left + _CROP]
        if piece.std() > 0 and (piece != piece[:, :1, :1]).any():
            break
    return piece
