"""Builds a very small checkpoint of all the real classes, with random weights, in the layout GLM-Image is published in.

For tests and for trying a worker out on any machine: seconds to build, under 3 MB, no network. Its pictures are noise;
the trained small one is `app.checkpoint.DEMO`.
"""

import os
from pathlib import Path

# Before torch, as in app.devices: a host with torch_npu but no CANN could not import it.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    GenerationConfig,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageImageProcessorPil,
    GlmImageProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)
from transformers.utils import logging as transformers_logging

from app.errors import Misconfigured

_SEED = 20260113
#: Codebook ids are 0.._CODES-1, then image start and end, then rows of the AR head that no token uses, as in GLM-Image.
_CODES = 96
_START, _END, _HEAD_ROWS = _CODES, _CODES + 1, _CODES + 8
_CONTROL = ("<|image_start|>", "<|image_end|>", "<|pad|>", "<|image|>", "<sop>", "<eop>", "<|user|>")
_TEMPLATE = (
    "{% for m in messages %}<|user|>{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|image_start|><|image|><|image_end|>"
    "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def make(folder: Path) -> None:
    """Write the checkpoint; raises Misconfigured unless the folder is missing or empty. Always the same weights."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Misconfigured(f"{folder} exists and is not an empty folder")
    transformers_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):  # the caller's generator is left as it was
        torch.manual_seed(_SEED)
        tokenizer = _tokenizer()
        pipeline = GlmImagePipeline(
            tokenizer=ByT5Tokenizer(),
            processor=_processor(tokenizer),
            text_encoder=_text_encoder(),
            vision_language_encoder=_vision_language_encoder(tokenizer),
            vae=_vae(),
            transformer=_transformer(),
            scheduler=scheduler(),
        )
    pipeline.save_pretrained(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte of text, after the codes, so that the codes' ids are also the AR model's input ids."""
    names = [f"<|code_{code}|>" for code in range(_CODES)]
    names += [*_CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",  # noqa: S106  (a token of text)
        bos_token="<|image_start|>",  # noqa: S106
        padding_side="left",
        extra_special_tokens={"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"},
    )


def _processor(tokenizer: PreTrainedTokenizerFast) -> GlmImageProcessor:
    pixels = {"shortest_edge": 128 * 128, "longest_edge": 2048 * 2048}
    images = GlmImageImageProcessorPil(patch_size=16, merge_size=1, temporal_patch_size=1, size=pixels)
    return GlmImageProcessor(image_processor=images, tokenizer=tokenizer, chat_template=_TEMPLATE)


def _vision_language_encoder(tokenizer: PreTrainedTokenizerFast) -> GlmImageForConditionalGeneration:
    wide = 0.2  # standard deviation; the usual 0.02 gives all codes nearly the same probability
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vision_vocab_size": _HEAD_ROWS,
        "max_position_embeddings": 8192,
        "initializer_range": wide,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": _END,
        # The class's default rotates whole heads and then its default sections do not add up.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 2],
        },
    }
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "patch_size": 16}
    config = GlmImageConfig(
        text_config=text,
        vision_config={**vision, "image_size": 64, "initializer_range": wide},
        vq_config={"embed_dim": 16, "num_embeddings": _CODES, "latent_channels": 32, "initializer_range": wide},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image|>"),
        image_start_token_id=_START,
        image_end_token_id=_END,
    )
    model = GlmImageForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.9,
        top_p=0.75,
        top_k=0,
        eos_token_id=_END,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=list(range(_CODES, _HEAD_ROWS)),  # an early end would leave pad ids in the reference's grid
    )
    return model


def _text_encoder() -> T5EncoderModel:
    config = T5Config(
        vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config).eval()


def _transformer() -> GlmImageTransformer2DModel:
    return GlmImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=12,  # for groups of 2, 3 and 4
        text_embed_dim=16,
        time_embed_dim=32,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=_CODES,
    ).eval()


def _vae() -> AutoencoderKL:
    """Four levels, because the latents of GLM-Image are an eighth of the picture."""
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        norm_num_groups=2,
        latent_channels=4,
        sample_size=128,
        latents_mean=[0.1, -0.1, 0.2, 0.0],
        latents_std=[1.0, 0.9, 1.1, 1.2],
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    ).eval()


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    """GLM-Image's own."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        time_shift_type="linear",
        base_shift=0.25,
        max_shift=0.75,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )
