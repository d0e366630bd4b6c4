import pytest
import torch

from app.dit.glyphs import GlyphEncoder, glyph_texts

PROMPTS = [
    "no text at all",
    'one "HI"',
    "two 'a' and \"bcd\"",
    "four styles: 「漢字」 \u201ccurly\u201d \"double\" 'single'",
    'an empty "" one',
    "it's one quote too many",
    'long "' + "x" * 3000 + '"',
]


def test_quoted_texts_come_style_by_style():
    assert glyph_texts("「four」 \u201ctwo\u201d \"three\" 'one' 'one more'") == [
        "one",
        "one more",
        "two",
        "three",
        "four",
    ]
    assert glyph_texts("it's plain") == []


@pytest.mark.parametrize("prompt", ["", *PROMPTS])
def test_embeddings_are_those_of_the_pipeline(prompt, pipelines):
    pipeline = pipelines["tiny"]
    with torch.inference_mode():
        expected = pipeline._get_glyph_embeds(prompt)
        assert torch.equal(GlyphEncoder(pipeline.tokenizer, pipeline.text_encoder).encode(prompt), expected)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_glyph_texts_are_those_of_the_pipeline(prompt, pipelines):
    assert [glyph_texts(prompt)] == pipelines["tiny"].get_glyph_texts(prompt)
