"""Pictures from strangers, decoded in a process of their own with little memory, time and no way back but a PNG.

`python -m app.decode PROCESSOR MAX_PIXELS` reads a file from stdin and writes the prepared PNG to stdout; a picture
that is refused is one sentence on stderr and exit status 2.
"""

import io
import resource
import subprocess
import sys
import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from app.errors import RefusedInput
from app.pictures import Bounds, prepare

FORMATS = ("PNG", "JPEG", "WEBP")
#: Limits of the child: address space in bytes, CPU and wall seconds.
_MEMORY, _CPU_S, _WALL_S = 1 << 30, 10, 20
_REFUSED = 2


def decode(data: bytes, processor: Path, *, max_pixels: int, field: str) -> bytes:
    """The first frame as a PNG ready for both stages. Raises RefusedInput naming the field."""
    try:
        found = subprocess.run(
            [sys.executable, "-m", "app.decode", str(processor), str(max_pixels)],
            input=data,
            capture_output=True,
            timeout=_WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RefusedInput(field, "takes too long to decode") from None
    if found.returncode == _REFUSED:
        raise RefusedInput(field, found.stderr.decode(errors="replace").strip())
    if found.returncode != 0:
        raise RefusedInput(field, "cannot be decoded")
    return found.stdout


def _read(data: bytes, processor: Path, max_pixels: int) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings():
        # Pillow only warns below twice the limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.seek(0)
            image.load()
            return prepare(image, Bounds.of(processor))


def _fail(text: str) -> None:
    sys.stderr.write(text)
    sys.exit(_REFUSED)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    processor, max_pixels = Path(sys.argv[1]), int(sys.argv[2])
    try:
        image = _read(sys.stdin.buffer.read(), processor, max_pixels)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        _fail(f"has more than {max_pixels} pixels")
    except UnidentifiedImageError:
        _fail(f"is not a {', '.join(FORMATS)} picture")
    except MemoryError:
        _fail("takes too much memory to decode")
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        _fail(f"cannot be decoded: {error}")
    else:
        image.save(sys.stdout.buffer, "PNG", compress_level=1)


if __name__ == "__main__":
    main()
