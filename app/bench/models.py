"""The two AR models that are measured: random weights in the real classes, the same for both sides."""

from dataclasses import dataclass

import torch
from transformers import (
    GenerationConfig,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageProcessor,
)

from app.ar.model import load_processor
from app.checkpoint import Checkpoint
from app.tiny_checkpoint import make


@dataclass(frozen=True, slots=True)
class Model:
    """A model as transformers loads it, and the processor that goes with it."""

    name: str
    description: str
    reference: GlmImageForConditionalGeneration
    processor: GlmImageProcessor


def small(checkpoint: Checkpoint) -> Model:
    """The tiny checkpoint, written here: a step is all overhead."""
    make(checkpoint.folder)
    reference = GlmImageForConditionalGeneration.from_pretrained(
        checkpoint.part("vision_language_encoder"), dtype=torch.float32, local_files_only=True
    )
    # Greedy search warns about parameters that only sampling reads.
    reference.generation_config.update(temperature=None, top_p=None, top_k=None)
    return _described("small", reference.eval(), load_processor(checkpoint))


def mid(processor: GlmImageProcessor) -> Model:
    """About 190 million parameters: a step of few rows is all memory traffic.

    Its tokenizer is the small model's. Nothing that is measured depends on what the ids of a prompt mean.
    """
    codes = 8192
    text = {
        "vocab_size": codes + 1024,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vision_vocab_size": codes,
        "max_position_embeddings": 8192,
        "pad_token_id": processor.tokenizer.pad_token_id,
        "eos_token_id": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 6, 6],
        },
    }
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "patch_size": 16}
    control = processor.tokenizer.convert_tokens_to_ids(["<|image|>", "<|image_start|>", "<|image_end|>"])
    config = GlmImageConfig(
        text_config=text,
        vision_config={**vision, "image_size": 64},
        vq_config={"embed_dim": 16, "num_embeddings": codes, "latent_channels": 32},
        image_token_id=control[0],
        image_start_token_id=control[1],
        image_end_token_id=control[2],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reference = GlmImageForConditionalGeneration(config).eval()
    reference.generation_config = GenerationConfig(pad_token_id=processor.tokenizer.pad_token_id)
    return _described("mid", reference, processor)


def _described(name: str, reference: GlmImageForConditionalGeneration, processor: GlmImageProcessor) -> Model:
    text = reference.config.text_config
    parameters = sum(
        p.numel() for part in (reference.model.language_model, reference.lm_head) for p in part.parameters()
    )
    size = f"{parameters / 1e6:.0f}M" if parameters >= 1e6 else f"{parameters / 1e3:.0f}k"
    return Model(
        name,
        f"{text.num_hidden_layers} layers, hidden {text.hidden_size}, {size} parameters",
        reference,
        processor,
    )
