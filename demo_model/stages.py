"""The stages by name: what each is trained on, and where it leaves what it has learned."""

from pathlib import Path

from diffusers import AutoencoderKL

from demo_model import ar, dit, vae
from demo_model.training import Training, weights

#: Stage -> its seed.
SEEDS = {"vae": 1, "ar": 2, "dit": 3, "decoder": 4}


def training(name: str, folder: Path) -> Training:
    """The stage where it stands; raises FileNotFoundError for DiT and decoder while there is no cooled VAE."""
    folder.mkdir(parents=True, exist_ok=True)
    seed = SEEDS[name]
    if name == "vae":
        return Training(vae.stage(seed), folder, seed)
    if name == "ar":
        return Training(ar.stage(seed), folder, seed)
    make = dit.stage if name == "dit" else vae.decoder_stage
    return Training(make(seed, _coder(folder)), folder, seed)


def _coder(folder: Path) -> AutoencoderKL:
    coder = vae.build()
    coder.load_state_dict(weights("vae", folder))
    vae.measure(coder.eval(), vae.MEASURE_SEED)
    return coder.requires_grad_(False)
