"""The contact sheet."""

import numpy as np
from PIL import Image

from app.sheet import sheet


def picture(width, height, colour="red"):
    return Image.new("RGB", (width, height), colour)


def test_pictures_stand_in_rows_none_made_larger():
    made = np.asarray(sheet([("a", picture(64, 32)), ("b", picture(400, 200, "blue")), ("c", picture(10, 10))], 2))
    red, blue = (made == (255, 0, 0)).all(-1), (made == (0, 0, 255)).all(-1)
    assert red.sum() == 64 * 32 + 10 * 10
    assert blue.sum() == 192 * 96
    assert red[: len(red) // 2].sum() == 64 * 32


def test_every_picture_has_its_words_under_it():
    made = np.asarray(sheet([("a green square to the left of a yellow star, 384x256", picture(192, 192))], 1))
    assert (made[:192, :192] == (255, 0, 0)).all()
    assert (made[192:] < 128).any()


def test_a_long_word_and_no_words_are_no_matter():
    assert sheet([("", picture(4, 4)), ("x" * 400, picture(4, 4))], 2).size == sheet([("a", picture(4, 4))] * 2, 2).size
