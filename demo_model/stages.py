"""The stages by name: how long each is trained, on what, and where it leaves what it has learned."""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL

from demo_model import ar, dit, vae
from demo_model.training import Training, digest, weights


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a stage is given: its seed, steps at the constant rate, and steps in which that goes down to nothing."""

    seed: int
    steps: int
    cooling: int

    def shortened(self, most: int) -> "Recipe":
        """The recipe with at most so many steps at the constant rate, and as much less cooling."""
        steps = min(self.steps, most)
        return Recipe(self.seed, steps, -(-self.cooling * steps // self.steps))


RECIPES = {
    "vae": Recipe(1, 1057, 264),
    "ar": Recipe(2, 6500, 8000),
    "dit": Recipe(3, 4212, 1053),
    "decoder": Recipe(4, 2565, 641),
}


def training(name: str, folder: Path) -> Training:
    """The stage where it stands; raises Unfinished for DiT and decoder while there is no cooled VAE."""
    folder.mkdir(parents=True, exist_ok=True)
    seed = RECIPES[name].seed
    if name == "vae":
        return Training(vae.stage(seed), folder, seed)
    if name == "ar":
        return Training(ar.stage(seed), folder, seed)
    make = dit.stage if name == "dit" else vae.decoder_stage
    learned = weights("vae", folder)
    return Training(make(seed, _coder(learned)), folder, seed, upon=digest(learned))


def _coder(learned: dict[str, torch.Tensor]) -> AutoencoderKL:
    coder = vae.build()
    coder.load_state_dict(learned)
    vae.measure(coder.eval(), vae.MEASURE_SEED)
    return coder.requires_grad_(False)
