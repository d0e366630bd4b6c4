"""The demo checkpoint's golden pictures, as statistics of their channels: `python -m tests.golden` writes them anew."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from app.ar.engine import ArEngine
from app.checkpoint import DEMO, Checkpoint
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.prior import PriorTokens
from app.domain.sizes import Size
from tests.ar.plans import plan, request

FILE = Path(__file__).with_suffix(".json")
PROMPT, STEPS, SEED = "an orange cross on a purple background", 3, 11
#: Fewer tokens than the scheduler's base of 256, as many, and more of them.
SIZES = ("128x128", "256x256", "384x256", "256x384", "320x320", "512x512")


def requests(checkpoint: Checkpoint) -> dict[str, PaintRequest]:
    """One greedy plan a size."""
    cpu, largest = torch.device("cpu"), max(Size.parse(size).pixels for size in SIZES)
    engine = ArEngine.load(
        checkpoint, device=cpu, dtype=torch.float32, slots=len(SIZES), max_prompt_tokens=64, max_pixels=largest
    )
    plans = plan(engine, *(request(size, prompt=PROMPT, size=size, temperature=0) for size in SIZES))
    return {size: painting(size, ids) for size, ids in plans.items()}


def painting(size: str, ids: tuple[int, ...]) -> PaintRequest:
    parsed = Size.parse(size)
    return PaintRequest(PROMPT, parsed, PriorTokens(parsed.large_grid, ids), SEED, STEPS, 1.5)


def statistics(pixels: np.ndarray) -> list[float]:
    """Mean and standard deviation of red, green and blue, and the mean step between neighbours: what noise raises."""
    values = pixels.astype(np.float64)
    rough = (np.abs(np.diff(values, axis=0)).mean() + np.abs(np.diff(values, axis=1)).mean()) / 2
    return [round(float(x), 3) for x in (*values.mean((0, 1)), *values.std((0, 1)), rough)]


def weights_of(checkpoint: Checkpoint) -> str:
    """Which checkpoint the statistics are of."""
    found = hashlib.sha256()
    for file in sorted(checkpoint.folder.rglob("*.safetensors")):
        found.update(file.read_bytes())
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    checkpoint = Checkpoint(DEMO)
    engine = DitEngine.load(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    made = {}
    for size, wanted in requests(checkpoint).items():
        made[size] = statistics(engine.paint(wanted, lambda step: None))
    FILE.write_text(json.dumps({"weights": weights_of(checkpoint), "pictures": made}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
