"""Condition pictures for edits, and the reference pipeline made to work on them."""

import contextlib

import numpy as np
from PIL import Image

from app.bench.judge import Drawing, Shape, draw


def drawn(width, height):
    return draw(Drawing("white", (Shape("red", "circle"),)), (width, height))


def noise(width, height, seed=0):
    """Blocks of random colours, so that the codebook ids of its cells differ."""
    blocks = np.random.default_rng(seed).integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    return Image.fromarray(blocks.repeat(8, 0).repeat(8, 1)[:height, :width])


@contextlib.contextmanager
def smallest_shim(pipeline):
    """The stock image-to-image of this version pair made to work, and greedy.

    transformers now returns one feature map an image; the pipeline still joins them as the packed features of all, and
    `get_image_tokens` then takes a channel for an image. So the pipeline gets packed features, and they are made the
    maps of the grids again when it wants their tokens.
    """
    model = pipeline.vision_language_encoder
    features, tokens, kept = model.get_image_features, model.get_image_tokens, model.generation_config.top_k

    def packed(*given, **named):
        found = features(*given, **named)
        if given:  # the pipeline's call; generate() names its arguments and needs the maps
            found.pooler_output = [found.last_hidden_state]
        return found

    def unpacked(hidden, grids):
        cells = hidden.split(grids.prod(-1).tolist())
        maps = [one.view(h, w, -1).permute(2, 0, 1) for one, (_, h, w) in zip(cells, grids.tolist(), strict=True)]
        return tokens([one.contiguous() for one in maps])

    model.get_image_features, model.get_image_tokens, model.generation_config.top_k = packed, unpacked, 1
    try:
        yield
    finally:
        del model.get_image_features, model.get_image_tokens  # the instance's; the class's are back
        model.generation_config.top_k = kept
