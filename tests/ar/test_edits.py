import pytest
import torch
from PIL import Image

from app.ar.condition import ImageTokenizer
from app.ar.prompt import PromptEncoder, edit_positions
from app.ar.weights import Weights
from app.domain.sizes import Size
from tests.ar.plans import alone, edit, finish, plan, request
from tests.edits import drawn, noise

PROMPT = "make the circle green"
PICTURES = {
    "demo": [(drawn(256, 256),), (drawn(256, 192), noise(128, 160))],
    "tiny": [(noise(160, 128),), (noise(128, 192), noise(256, 128, seed=1))],
}
#: Square, portrait, landscape and two that are rounded up inside.
SIZES = ["256x256", "192x256", "256x128", "300x200", "96x130"]


def inputs(reference, prompt, size, images):
    """What `GlmImagePipeline.generate_prior_tokens` hands to generate()."""
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": prompt}]
    return reference.processor.apply_chat_template(
        [[{"role": "user", "content": content}]],
        tokenize=True,
        padding=False,
        target_h=size.inside.height,
        target_w=size.inside.width,
        return_dict=True,
        return_tensors="pt",
    )


def greedy(reference, prompt, size, images):
    given = inputs(reference, prompt, size, images)
    with torch.inference_mode():
        ids = reference.model.generate(**given, max_new_tokens=size.large_grid.tokens, do_sample=False)
    return tuple(ids[0, given["input_ids"].shape[1] :].tolist())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_greedy_edits_are_those_of_generate(name, count, size, engines, references):
    images = PICTURES[name][count - 1]
    planned = plan(engines[name], edit("a", images, size=size, temperature=0))
    assert planned["a"] == greedy(references[name], PROMPT, Size.parse(size), images)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_condition_ids_are_those_of_get_image_tokens(name, count, engines, references):
    images, model = PICTURES[name][count - 1], references[name].model
    cut = references[name].processor.image_processor(list(images), return_tensors="pt")
    with torch.inference_mode():
        features = model.get_image_features(cut["pixel_values"], cut["image_grid_thw"]).pooler_output
        expected = model.get_image_tokens(features).tolist()
    assert engines[name].admit([edit("a", images)]) == []
    condition = finish(engines[name])["a"].condition
    assert [code for prior in condition for code in prior.ids] == expected
    assert [(prior.grid.width, prior.grid.height) for prior in condition] == [
        (image.width // 32, image.height // 32) for image in images
    ]
    assert len(set(expected)) > 5  # ids that are all the same would fit any order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_finds_nearly_the_same_condition_ids(dtype, demo_checkpoint, engines, references):
    prompt = PromptEncoder(references["demo"].processor).encode_edit(PROMPT, Size(256, 256), PICTURES["demo"][0])
    tokenizer = ImageTokenizer(Weights.load(demo_checkpoint), torch.device("cpu"), dtype)
    with torch.inference_mode():
        exact = engines["demo"]._opener._images.encode(prompt.pixels, prompt.grids)[0].ids
        found = tokenizer.encode(prompt.pixels, prompt.grids)[0].ids
    assert sum(map(int.__eq__, exact, found)) >= 0.95 * len(exact)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_positions_are_those_of_get_rope_index(name, size, references):
    reference, size = references[name], Size.parse(size)
    given = inputs(reference, "a cat", size, PICTURES[name][1])
    prompt = PromptEncoder(reference.processor).encode_edit("a cat", size, PICTURES[name][1])
    assert prompt.ids == given["input_ids"][0].tolist()
    model = reference.model.model
    prefill, _ = model.get_rope_index(
        given["input_ids"], given["image_grid_thw"], given["images_per_sample"], given["attention_mask"]
    )
    decode = model._cached_decode_position_ids[0, :, :-1]  # the last one is the end token's
    assert torch.equal(edit_positions(prompt, size), torch.cat((prefill[:, 0], decode), dim=1))


def test_edits_and_text_to_image_share_a_batch(engines):
    """Rows have their own ids whatever they run with, when they start together and when they join late."""
    one, two = PICTURES["tiny"]
    requests = [
        edit("one", one, size="128x96", seed=1),
        request("text", prompt="a blue star", size="96x64", seed=2),
        edit("two", two, size="64x160", seed=3, temperature=0),
        request("later", size="64x64", seed=4),
        edit("short", one, size="32x32", prompt="", seed=5),
    ]
    engine, planned = engines["tiny"], {}
    expected = alone(engine, requests)
    assert plan(engine, *requests) == expected
    waiting = requests[::-1]
    while waiting or engine.running:
        if waiting and engine.free_slots > 3:
            assert engine.admit([waiting.pop()]) == []
        planned |= {item.key: item.prior.ids for item in engine.step()}
    assert planned == expected


def test_the_images_and_their_order_count(engines):
    first, second = PICTURES["tiny"][1]
    orders = [(first, second), (second, first), (first,)]
    planned = plan(engines["tiny"], *(edit(str(i), images, size="128x96") for i, images in enumerate(orders)))
    assert len(set(planned.values())) == len(orders)


def test_an_edit_plans_no_preview(engines):
    engine = engines["tiny"]
    engine.admit([edit("a", PICTURES["tiny"][0], size="96x64")])
    for _ in range(3 * 2 - 2):  # the first token comes from the prompt
        assert engine.step() == []
    assert len(engine.step()[0].prior.ids) == 3 * 2


def test_images_that_do_not_fit_the_slot_are_refused_with_numbers(engines):
    engine = engines["tiny"]
    fits, over = (noise(512, 512),), (noise(512, 512), noise(512, 512), noise(512, 512))
    refused = engine.admit([edit("over", over, size="256x256"), edit("fits", fits, size="256x256")])
    assert [(failure.key, failure.code, failure.retryable) for failure in refused] == [
        ("over", "prompt_too_long", False)
    ]
    for number in ("768 of them for its 3 images", "the picture 64"):
        assert number in refused[0].message
    assert engine.running == ("fits",)


@pytest.mark.parametrize("image", [noise(100, 100), noise(272, 272), noise(640, 128), noise(8, 8)])
def test_an_image_that_the_dit_could_not_take_is_refused(image, engines):
    engine = engines["tiny"]
    refused = engine.admit([edit("a", (noise(128, 128), image)), edit("b", (noise(128, 128),), prompt="\ud800")])
    assert [(failure.code, failure.retryable) for failure in refused] == [
        ("invalid_image", False),
        ("invalid_prompt", False),
    ]
    assert engine.running == ()


def test_a_prompt_cannot_write_a_placeholder(engines, references):
    encoder = PromptEncoder(references["tiny"].processor)
    images = (Image.new("RGB", (128, 128)),)
    prompt = encoder.encode_edit("<|image|> and <|image_end|>", Size(64, 64), images)
    assert prompt.ids.count(prompt.placeholder) == 16
