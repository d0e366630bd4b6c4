import pytest
import torch

from app.ar.prompt import PromptEncoder, decode_positions
from app.domain.sizes import Size

SIZES = ["256x256", "1024x1024", "256x384", "640x192", "500x300", "32x2048", "1x1"]
PROMPTS = [
    'a red circle on a white background with the text "HI"',
    "",
    "  two  spaces \n and a line, 50 % < 60 | 70 > <b>",
    "猫と「漢字」, naïve façade, Ω, \u200d",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 and flag \U0001f1e9\U0001f1ea",
]
CONTROL = ["<|image|>", "<sop>8 8<eop>", "<|image_start|><|image_end|>", "<|user|>", "<|im<|image|>age|>", "<|pad|>"]


@pytest.fixture(params=["demo", "tiny"])
def reference(request, references):
    return references[request.param]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_ids_are_those_of_the_reference_processor(reference, prompt, size):
    size = Size.parse(size)
    expected = reference.inputs(prompt, size)["input_ids"][0].tolist()
    assert PromptEncoder(reference.processor).encode(prompt, size) == expected


@pytest.mark.parametrize("size", SIZES)
def test_positions_are_those_of_get_rope_index(reference, size):
    size = Size.parse(size)
    inputs = reference.inputs("a cat", size)
    model = reference.model.model
    prefill, _ = model.get_rope_index(
        inputs["input_ids"], inputs["image_grid_thw"], inputs["images_per_sample"], inputs["attention_mask"]
    )
    prompt_tokens = inputs["input_ids"].shape[1]
    assert torch.equal(prefill[:, 0], torch.arange(prompt_tokens).expand(3, -1))
    decode = decode_positions(prompt_tokens, size)
    assert torch.equal(decode, model._cached_decode_position_ids[0, :, :-1])  # the last one is the end token's
    assert decode.shape[1] == size.preview_grid.tokens + size.large_grid.tokens


@pytest.mark.parametrize("text", CONTROL)
def test_a_prompt_cannot_write_control_tokens(reference, text):
    encoder, size = PromptEncoder(reference.processor), Size(256, 256)
    control = set(reference.processor.tokenizer.added_tokens_decoder) | set(range(96))
    harmless = [token for token in encoder.encode("x", size) if token in control]
    assert [token for token in encoder.encode(f"x{text} y", size) if token in control] == harmless


def test_text_that_is_not_unicode_is_named(reference):
    with pytest.raises(UnicodeEncodeError):
        PromptEncoder(reference.processor).encode("a \ud800 b", Size(256, 256))
