"""The contact sheet: pictures with what was asked for under them."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

_TILE, _CAPTION, _GAP, _LINE = 192, 52, 6, 32


def sheet(pictures: Sequence[tuple[str, Image.Image]], columns: int) -> Image.Image:
    """Every picture in a tile of its own, smaller ones in the middle of it, none made larger."""
    rows = -(-len(pictures) // columns)
    made = Image.new("RGB", (columns * (_TILE + _GAP), rows * (_TILE + _CAPTION)), "white")
    pen = ImageDraw.Draw(made)
    for number, (said, picture) in enumerate(pictures):
        left, top = number % columns * (_TILE + _GAP), number // columns * (_TILE + _CAPTION)
        small = picture.copy()
        small.thumbnail((_TILE, _TILE))
        made.paste(small, (left + (_TILE - small.width) // 2, top + (_TILE - small.height) // 2))
        pen.multiline_text((left + 2, top + _TILE + 1), "\n".join(_lines(said)), fill="black", font_size=11)
    return made


def _lines(said: str) -> list[str]:
    lines = [""]
    for word in said.split():
        if len(lines[-1]) + len(word) > _LINE:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:3]
