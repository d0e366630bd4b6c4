"""How a picture was made, written into its own file: as the tools of the field read it, and as one JSON object.

The text is what A1111 calls infotext: the prompt, then one line of `Name: value` pairs. PNG holds it as iTXt
`parameters`, JPEG and WebP as EXIF UserComment; those are the places where ComfyUI, A1111 and picture sites look.
The JSON stands beside it, exact and complete: PNG iTXt `planpaint`, EXIF ImageDescription.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from app import __version__

#: What a prompt may take in a file, as JSON escapes and UTF-16 together; a JPEG's EXIF ends at 64 KiB.
_PROMPT_BYTES = 48 * 1024
_SOFTWARE = f"planpaint {__version__}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a file says of its picture. `size` is "WIDTHxHEIGHT"; `index` is the image's place in its job."""

    prompt: str
    size: str
    seed: int
    steps: int
    guidance_scale: float
    temperature: float
    top_p: float
    top_k: int
    condition_images: int
    model: str
    job: str
    index: int

    def infotext(self) -> str:
        """The prompt, and what made a picture of it, as A1111 writes them."""
        pairs = {
            "Steps": self.steps,
            "CFG scale": self.guidance_scale,
            "Seed": self.seed,
            "Size": self.size,
            "Model": self.model,
            "Job": self.job,
            "Image": self.index,
            "Version": _SOFTWARE,
        }
        return f"{_cut(self.prompt)}\n" + ", ".join(f"{name}: {value}" for name, value in pairs.items())

    def text(self) -> str:
        """One JSON object in ASCII, which every EXIF reader takes."""
        return json.dumps({"software": _SOFTWARE} | asdict(self) | {"prompt": _cut(self.prompt)})

    def options(self, output_format: str) -> dict[str, Any]:
        """What Pillow's `save` writes into a file of this format."""
        if output_format == "png":
            chunks = PngInfo()
            # iTXt by name: Pillow's choice for Latin-1 is tEXt, which others read in their own code page.
            chunks.add_itxt("parameters", self.infotext())
            chunks.add_itxt("planpaint", self.text())
            chunks.add_itxt("Software", _SOFTWARE)
            return {"pnginfo": chunks}
        exif = Image.Exif()
        exif[_DESCRIPTION], exif[_MADE_BY] = self.text(), _SOFTWARE
        # In the byte order of Pillow's EXIF, which is also the one that readers of infotext expect.
        exif.get_ifd(_EXIF)[_COMMENT] = b"UNICODE\0" + self.infotext().encode("utf-16-be")
        return {"exif": exif}


#: EXIF tags: ImageDescription, Software, the Exif directory, and in it UserComment.
_DESCRIPTION, _MADE_BY, _EXIF, _COMMENT = 0x010E, 0x0131, 0x8769, 0x9286


def _cut(prompt: str) -> str:
    """The prompt, or as much of it as a file has room for, ending in an ellipsis."""
    room = _PROMPT_BYTES
    for place, character in enumerate(prompt):
        room -= len(json.dumps(character)) - 2 + len(character.encode("utf-16-be"))
        if room < 0:
            return prompt[:place] + "…"
    return prompt
