"""The tokenizer and the processor: byte-level BPE trained on the sentences, its first ids are the codes."""

import json
import random
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GlmImageImageProcessorPil, GlmImageProcessor, PreTrainedTokenizerFast

from demo_model import samples
from demo_model.codebook import CODES
from demo_model.sentences import sentence

START, END = CODES, CODES + 1
_CONTROL = ("<|pad|>", "<|image|>", "<sop>", "<eop>", "<|user|>")
_TEMPLATE = (
    "{% for m in messages %}<|user|>{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|image_start|><|image|><|image_end|>"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
#: Words that the sentences do not have, or have seldom, and that shall be one token each.
_WORDS = "make change the to background the same picture copy this small large big text letter word and with in at"
_SEED = 1
_SENTENCES, _VOCABULARY, _RARE = 3000, 640, 10


@lru_cache(maxsize=1)
def tokenizer() -> PreTrainedTokenizerFast:
    """Always the same one: the sentences that it is trained on have a fixed seed."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    lower, split = normalizers.Lowercase(), pre_tokenizers.ByteLevel(add_prefix_space=True)
    learned = Tokenizer(models.BPE())
    learned.normalizer, learned.pre_tokenizer = lower, split
    learned.train_from_iterator(
        _corpus(),
        trainers.BpeTrainer(
            vocab_size=_VOCABULARY, min_frequency=_RARE, initial_alphabet=alphabet, show_progress=False
        ),
    )
    merges = [tuple(merge) for merge in json.loads(learned.to_str())["model"]["merges"]]
    names = [*(f"<|code_{code}|>" for code in range(CODES)), "<|image_start|>", "<|image_end|>", *_CONTROL, *alphabet]
    vocabulary = {name: index for index, name in enumerate(names)}
    for merge in merges:
        vocabulary.setdefault("".join(merge), len(vocabulary))
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.normalizer, made.pre_tokenizer, made.decoder = lower, split, decoders.ByteLevel()
    control = ("<|image_start|>", "<|image_end|>", *_CONTROL)
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|pad|>",  # noqa: S106  (a token of text)
        bos_token="<|image_start|>",  # noqa: S106
        padding_side="left",
        extra_special_tokens={"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"},
    )


def _corpus() -> list[str]:
    rng = random.Random(_SEED)  # noqa: S311
    said = [sentence(rng, samples.sample(rng, 8, 8).drawing) for _ in range(_SENTENCES)]
    numbers = " ".join(str(number) for number in range(4, 33))
    return said + [_WORDS, numbers] * 60


def processor() -> GlmImageProcessor:
    """Its image half keeps colours linear: 16 pixels of the halved picture are one cell of 32."""
    pixels = {"shortest_edge": 128 * 128, "longest_edge": 2048 * 2048}
    images = GlmImageImageProcessorPil(
        patch_size=16, merge_size=1, temporal_patch_size=1, size=pixels, image_mean=[0.5] * 3, image_std=[1.0] * 3
    )
    return GlmImageProcessor(image_processor=images, tokenizer=tokenizer(), chat_template=_TEMPLATE)


def ids(text: str) -> list[int]:
    """The token ids of a text; control tokens that are spelled out become themselves."""
    found: Any = tokenizer()(text).input_ids
    return list(found)
