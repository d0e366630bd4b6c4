"""How drawings are asked for while the model is trained: the standard sentence, and other ways to say it."""

import random

from app.bench.world import RELATIONS, Drawing

_BEFORE = (
    "a picture of ",
    "an image of ",
    "draw ",
    "please draw ",
    "a drawing of ",
    "a photo of ",
    "a simple picture of ",
)
_BEHIND = (".", ".", ", flat colors", ", simple", ", minimalist, 4k", ", vector art", ", high quality")


def sentence(rng: random.Random, drawing: Drawing) -> str:
    """Half of them the standard prompt."""
    if rng.random() < 0.5:
        return drawing.prompt
    articles = rng.random() < 0.75
    said = [_named(str(shape), articles) for shape in drawing.shapes]
    if drawing.relation is not None:
        words = RELATIONS[drawing.relation]
        said.insert(1, words.removeprefix("to the ") if rng.random() < 0.5 else words)
    text = " ".join(said) + _behind(rng, drawing, articles)
    before = rng.choice(_BEFORE) if rng.random() < 0.5 else ""
    return before + text + (rng.choice(_BEHIND) if rng.random() < 0.5 else "")


def _behind(rng: random.Random, drawing: Drawing, articles: bool) -> str:
    """The background; nothing at all stands for white, or for black behind a white shape."""
    usual = "black" if any(shape.colour == "white" for shape in drawing.shapes) else "white"
    if drawing.background == usual and rng.random() < 0.4:
        return ""
    named = _named(drawing.background, articles)
    return rng.choice((f" on {named} background", f" on {drawing.background}", f", {drawing.background} background"))


def _named(words: str, article: bool) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}" if article else words
