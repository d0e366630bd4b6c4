"""The checkpoint: the trained stages as one folder, laid out as GLM-Image is published."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import GlmImagePipeline, GlmImageTransformer2DModel
from transformers import ByT5Tokenizer, GenerationConfig, GlmImageForConditionalGeneration, GlmImageModel

from app.tiny_checkpoint import scheduler
from demo_model import ar, dit, vae
from demo_model.codebook import LIFT, POINTS, FactoredTable, lifted
from demo_model.tokenizer import END, START, processor, tokenizer

#: Pixels of the halved picture that a point of a cell is the mean of, on a side.
_POOL = 4


def export(weights: dict[str, dict[str, torch.Tensor]], folder: Path) -> None:
    """Write the checkpoint over whatever the folder holds; `weights` are those of all stages.

    They are stored in half the precision and loaded in float32: the configs say so.
    """
    coder = vae.build()
    coder.load_state_dict(weights["vae"])
    vae.measure(coder.eval(), vae.MEASURE_SEED)
    coder.decoder.load_state_dict(weights["decoder"])
    parts = {
        "vision_language_encoder": _vision_language_encoder(weights["ar"]),
        "transformer": _transformer(weights["dit"]),
        "vae": coder,
        "text_encoder": dit.build_text_encoder(),
    }
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    pipeline = GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=processor(),
        scheduler=scheduler(),
        **{name: part.half() for name, part in parts.items()},
    )
    pipeline.save_pretrained(half)
    for file in half.glob("*/config.json"):
        config = json.loads(file.read_text("utf-8"))
        _say_float32(config)
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    half.rename(folder)


def _vision_language_encoder(weights: dict[str, torch.Tensor]) -> GlmImageForConditionalGeneration:
    network = ar.Network()
    network.load_state_dict(weights)
    model = GlmImageForConditionalGeneration(ar.config()).eval()
    with torch.no_grad():
        words, head = network.language.embed_tokens.rows(), network.head.rows()
        learned = network.language.state_dict()
        plain = {name: value for name, value in learned.items() if not name.startswith("embed_tokens.")}
        model.model.language_model.load_state_dict(plain | {"embed_tokens.weight": words})
        model.lm_head.weight.copy_(head)
        _see(model.model)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.9,
        top_p=0.75,
        top_k=0,
        eos_token_id=END,
        pad_token_id=tokenizer().pad_token_id,
        suppress_tokens=[START, END],  # an early end would leave pad ids in the reference's grid
    )
    return model


def _see(model: GlmImageModel) -> None:
    """Make the vision tower take the means of a cell's points, and the quantizer the code that is nearest to them."""
    numbers = POINTS * POINTS * 3
    pool = torch.zeros(numbers, 3, POINTS * _POOL, POINTS * _POOL)
    for row in range(POINTS):
        for column in range(POINTS):
            for channel in range(3):
                rows = slice(row * _POOL, (row + 1) * _POOL)
                columns = slice(column * _POOL, (column + 1) * _POOL)
                pool[(row * POINTS + column) * 3 + channel, channel, rows, columns] = 1 / _POOL**2
    patches = model.visual.patch_embed.proj
    patches.weight.copy_(pool)
    patches.bias.zero_()
    model.visual.embeddings.position_embedding.weight.zero_()
    quantizer = model.vqmodel
    quantizer.quant_conv.weight.copy_(torch.eye(numbers + 1, numbers)[:, :, None, None])
    quantizer.quant_conv.bias.zero_()
    quantizer.quant_conv.bias[numbers] = LIFT  # one more number, so that the largest cosine is the least distance
    quantizer.post_quant_conv.weight.copy_(torch.eye(numbers, numbers + 1)[:, :, None, None])
    quantizer.post_quant_conv.bias.zero_()
    quantizer.quantize.embedding.weight.copy_(lifted())


def _transformer(weights: dict[str, torch.Tensor]) -> GlmImageTransformer2DModel:
    parts = {name: value for name, value in weights.items() if name.startswith("prior_token_embedding.")}
    table = FactoredTable(dit.WIDTH, 1.0)
    table.load_state_dict({name.removeprefix("prior_token_embedding."): value for name, value in parts.items()})
    plain = {name: value for name, value in weights.items() if name not in parts}
    rows = torch.cat([table.rows().detach(), torch.zeros(2, dit.WIDTH)])
    network = dit.build()
    network.load_state_dict(plain | {"prior_token_embedding.weight": rows})
    return network.eval()


def _say_float32(config: dict[str, Any]) -> None:
    for name, value in config.items():
        if name in ("dtype", "torch_dtype"):
            config[name] = "float32"
        elif isinstance(value, dict):
            _say_float32(value)
