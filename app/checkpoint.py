"""A checkpoint folder, laid out as GLM-Image is published. Checked before any weight is loaded, without torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.errors import BrokenCheckpoint, PlanpaintError

#: The trained small checkpoint that ships with the program.
DEMO = Path(__file__).parent / "checkpoints" / "demo"

AR_PARTS = ("processor", "vision_language_encoder")
DIT_PARTS = ("tokenizer", "text_encoder", "transformer", "vae", "scheduler")

#: Files besides the weights that each part cannot do without.
_FILES = {
    "processor": ("processor_config.json", "tokenizer.json", "tokenizer_config.json"),
    "vision_language_encoder": ("config.json",),
    "tokenizer": ("tokenizer_config.json",),
    "text_encoder": ("config.json",),
    "transformer": ("config.json",),
    "vae": ("config.json",),
    "scheduler": ("scheduler_config.json",),
}
#: The stem of each part's safetensors files; parts that are absent here have no weights.
_WEIGHTS = {
    "vision_language_encoder": "model",
    "text_encoder": "model",
    "transformer": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose parts a worker loads by name; `verify` says in one sentence which file is wrong."""

    folder: Path

    def part(self, name: str) -> Path:
        return self.folder / name

    @property
    def tokenizer_file(self) -> Path:
        """The prompt tokenizer of the AR model, which the API uses to count tokens."""
        return self.folder / "processor" / "tokenizer.json"

    def verify(self, parts: tuple[str, ...]) -> None:
        """Check that all files of these parts are there and whole; BrokenCheckpoint names the first that is not."""
        if not self.folder.is_dir():
            raise BrokenCheckpoint(f"the checkpoint folder {self.folder} does not exist")
        for part in parts:
            for name in _FILES[part]:
                _read_json(self.part(part) / name)
            if part == "processor":
                self._check_template()
            if part in _WEIGHTS:
                for path in self.weight_files(part):
                    _check_safetensors(path)

    def _check_template(self) -> None:
        """Prompts are wrapped by a chat template, in a file of its own or inside a configuration."""
        folder = self.part("processor")
        path = folder / "chat_template.jinja"
        try:
            if path.exists() and path.read_text("utf-8").strip():
                return
        except (OSError, ValueError) as error:
            raise BrokenCheckpoint(f"the checkpoint file {path} cannot be read: {error}") from error
        holders = ("tokenizer_config.json", "processor_config.json", "chat_template.json")
        if not any("chat_template" in _read_json(folder / name) for name in holders if (folder / name).exists()):
            raise BrokenCheckpoint(f"the checkpoint file {path} is missing or empty")

    def weight_files(self, part: str) -> list[Path]:
        """The safetensors files of a part that has weights."""
        folder, stem = self.part(part), _WEIGHTS[part]
        index = folder / f"{stem}.safetensors.index.json"
        if not index.exists():
            return [folder / f"{stem}.safetensors"]
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BrokenCheckpoint(f"the checkpoint file {index} has no weight_map")
        return [folder / name for name in sorted(set(weight_map.values()))]


@contextmanager
def loading(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what a library raises over files that are whole but wrong into one sentence."""
    try:
        yield
    except PlanpaintError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise BrokenCheckpoint(f"the checkpoint {checkpoint.folder} cannot be loaded: {text}") from error


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BrokenCheckpoint(f"the checkpoint file {path} is missing") from None
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(f"the checkpoint file {path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise BrokenCheckpoint(f"the checkpoint file {path} is not a JSON object")
    return value


def _check_safetensors(path: Path) -> None:
    """Compare the file's size with its header's promise, so that a cut-off download is named before it is loaded."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if size < 8 or header_size > size - 8:
                raise BrokenCheckpoint(f"the checkpoint file {path} is cut off in its header")
            header = json.loads(file.read(header_size))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except FileNotFoundError:
        raise BrokenCheckpoint(f"the checkpoint file {path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenCheckpoint(f"the checkpoint file {path} is not a safetensors file: {error}") from error
    if size != 8 + header_size + end:
        raise BrokenCheckpoint(
            f"the checkpoint file {path} has {size} bytes where its header promises {8 + header_size + end}"
        )
