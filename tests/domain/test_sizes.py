import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.sizes import CELL, MAX_SIDE, Grid, Size

sides = st.integers(1, MAX_SIDE)


@pytest.mark.parametrize(
    "text", ["", "x", "256", "0x256", "256x0", "-1x5", "99999x1", "2049x1", "1x2049", "1.5x2", "١x٢"]
)
@pytest.mark.parametrize("pad", ["", " "])
def test_refuses(text, pad):
    with pytest.raises(ValueError):
        Size.parse(pad + text)


@given(sides, sides)
def test_parses_what_it_prints(width, height):
    assert Size.parse(str(Size(width, height))) == Size(width, height)


@given(sides, sides)
def test_inside_covers_the_picture_with_whole_cells_and_no_more(width, height):
    inside = Size(width, height).inside
    assert inside.width % CELL == inside.height % CELL == 0
    assert 0 <= inside.width - width < CELL
    assert 0 <= inside.height - height < CELL


@given(sides, sides)
def test_preview_has_about_256_tokens_and_never_none(width, height):
    preview = Size(width, height).preview_grid
    assert preview.height >= 1
    assert preview.width >= 1
    assert 128 <= preview.tokens <= 256


@pytest.mark.parametrize(
    ("text", "large", "preview"),
    [
        ("1024x1024", Grid(32, 32), Grid(16, 16)),
        ("384x256", Grid(8, 12), Grid(13, 19)),
        ("500x300", Grid(10, 16), Grid(12, 20)),
        ("2048x1", Grid(1, 64), Grid(2, 128)),
    ],
)
def test_grids(text, large, preview):
    assert Size.parse(text).large_grid == large
    assert Size.parse(text).preview_grid == preview
