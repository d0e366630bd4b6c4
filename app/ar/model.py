"""The AR decoder's forward pass over KV slots, with the weights of transformers' `GlmImageForConditionalGeneration`.

The module's own forward keeps the decode positions and one step counter on itself, so that all its rows must be at the
same step. Here every row brings its positions and its length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch.nn import functional
from transformers import GlmImageForConditionalGeneration, GlmImageProcessor
from transformers.models.glm_image.modeling_glm_image import GlmImageTextDecoderLayer
from transformers.utils import logging as transformers_logging

from app.ar.kv_cache import BLOCK, KvCache
from app.checkpoint import Checkpoint
from app.errors import BrokenCheckpoint

#: Takes a layer's index and its queries, keys and values [tokens, heads + 2 * kv_heads, head_dim], keys and queries
#: rotated; stores keys and values, and returns the attention's result [tokens, heads * head_dim].
_Attend = Callable[[int, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer's weights, named as in transformers except that query, key and value are one matrix."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    output: torch.Tensor
    post_self_attn_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    gate_up: torch.Tensor
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: torch.Tensor
    post_mlp_norm: torch.Tensor


class Decoder:
    """Logits over the codebook for prompts (`prefill`) and for one token of every row (`decode`)."""

    def __init__(self, model: GlmImageForConditionalGeneration, device: torch.device) -> None:
        language_model, config = model.model.language_model, model.config.text_config
        attention = language_model.layers[0].self_attn
        self.device = device
        self.dtype: torch.dtype = model.dtype
        self.layer_count: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = attention.head_dim
        self._epsilon: float = config.rms_norm_eps
        self._rotary = language_model.rotary_emb
        self._embedding = language_model.embed_tokens.weight.detach().to(device)
        self._layers = [_fuse(layer, device) for layer in language_model.layers]
        self._norm = language_model.norm.weight.detach().to(device)
        # Only the codebook's rows: the head can also name start, end and unused ids, which garble or crash the DiT.
        codes = model.config.vq_config.num_embeddings
        self._head = model.lm_head.weight.detach()[:codes].to(device)

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype) -> Self:
        """Read `vision_language_encoder`; only its language model and head go to the device."""
        transformers_logging.disable_progress_bar()
        folder = checkpoint.part("vision_language_encoder")
        # Without a dtype transformers takes the config's. Weights that are not in the files would be drawn at random.
        model, report = GlmImageForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        if report["missing_keys"]:
            raise BrokenCheckpoint(f"the checkpoint files in {folder} lack {sorted(report['missing_keys'])[0]}")
        return cls(model, device)

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """Rotary factors of positions [3, tokens]: [tokens, 2 (cosine, signed sine), rotary_dim], on the device."""
        reference = torch.empty(0, device=self.device, dtype=self.dtype)
        cosine, sine = self._rotary(reference, positions[:, None].to(self.device))
        half = sine.shape[-1] // 2
        # The sign is that of rotate_half's first half, so that a step swaps the halves and need not negate one.
        signed = torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)
        return torch.stack((cosine[0], signed), dim=1)

    def prefill(self, ids: list[int], rotary: torch.Tensor, cache: KvCache, slot: int) -> torch.Tensor:
        """Read a prompt into a slot; the logits [1, codes] of its last position.

        One prompt at a time: prompts are short next to the grids, and this way there is no padding to get right and
        nothing that a row could take from the rows admitted with it.
        """

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            heads = qkv.transpose(0, 1)[None]  # [1, heads + 2 * kv_heads, tokens, head_dim]
            query, (key, value) = heads[:, : self.heads], heads[:, self.heads :].chunk(2, dim=1)
            cache.layers[index][slot, 0, :, : len(ids)] = key[0]
            cache.layers[index][slot, 1, :, : len(ids)] = value[0]
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return mixed[0].transpose(0, 1).reshape(len(ids), -1)

        hidden = self._forward(torch.tensor(ids, device=self.device), rotary, attend)
        return functional.linear(hidden[-1:], self._head)

    def decode(
        self, tokens: torch.Tensor, rotary: torch.Tensor, lengths: torch.Tensor, longest: int, cache: KvCache
    ) -> torch.Tensor:
        """Feed one token to each of the slots 0..rows-1; logits [rows, codes].

        `tokens` [rows], `rotary` [rows, 2, rotary_dim] and `lengths` [rows] (positions already stored, which is where
        this token's key and value go); `longest` is the largest length, known to the caller without asking the device.
        """
        rows, seen = tokens.shape[0], -(-(longest + 1) // BLOCK) * BLOCK
        slots = cache.slots[:rows]
        # A query head's group shares its keys, so the group stands where other models have query positions: the keys
        # need no repeating. The mask is boolean: torch_npu falls off its fused kernel, or worse, on float masks.
        group = self.heads // self.kv_heads
        visible = cache.positions[:seen] <= lengths[:, None]
        mask = visible[:, None, None].expand(rows, 1, group, seen)

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            layer = cache.layers[index]
            query = qkv[:, : self.heads].view(rows, self.kv_heads, group, self.head_dim)
            layer[slots, :, :, lengths] = qkv[:, self.heads :].view(rows, 2, self.kv_heads, self.head_dim)
            stored = layer[:rows, :, :, :seen]
            mixed = functional.scaled_dot_product_attention(query, stored[:, 0], stored[:, 1], attn_mask=mask)
            return mixed.reshape(rows, -1)

        return functional.linear(self._forward(tokens, rotary, attend), self._head)

    def _forward(self, tokens: torch.Tensor, rotary: torch.Tensor, attend: _Attend) -> torch.Tensor:
        """Hidden states [tokens, hidden] after the last norm; prefill and decode differ in `attend` only."""
        cosine, sine = rotary[:, None, 0], rotary[:, None, 1]
        rotated = self.heads + self.kv_heads
        hidden = functional.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = functional.linear(self._normed(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(tokens.shape[0], -1, self.head_dim)
            _rotate(qkv[:, :rotated], cosine, sine)
            mixed = functional.linear(attend(index, qkv), layer.output)
            hidden = hidden + self._normed(mixed, layer.post_self_attn_norm)
            gate, up = functional.linear(self._normed(hidden, layer.post_attention_norm), layer.gate_up).chunk(2, -1)
            mixed = functional.linear(layer.activation(gate).mul_(up), layer.down)
            hidden = hidden + self._normed(mixed, layer.post_mlp_norm)
        return self._normed(hidden, self._norm)

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # Bit-equal to GlmImageRMSNorm in float32; in half precision it rounds once less.
        return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)


def load_processor(checkpoint: Checkpoint) -> GlmImageProcessor:
    return GlmImageProcessor.from_pretrained(checkpoint.part("processor"), local_files_only=True)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotate the first rotary_dim numbers of every head in place (`apply_rotary_pos_emb`); the rest pass."""
    rotary_dim = cosine.shape[-1]
    part = heads[..., :rotary_dim]
    swapped = torch.cat((part[..., rotary_dim // 2 :], part[..., : rotary_dim // 2]), dim=-1)
    part.mul_(cosine).add_(swapped.mul_(sine))


def _fuse(layer: GlmImageTextDecoderLayer, device: torch.device) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([projection.bias.detach() for projection in projections]).to(device)
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach().to(device),
        qkv=torch.cat([projection.weight.detach() for projection in projections]).to(device),
        qkv_bias=bias,
        output=attention.o_proj.weight.detach().to(device),
        post_self_attn_norm=layer.post_self_attn_layernorm.weight.detach().to(device),
        post_attention_norm=layer.post_attention_layernorm.weight.detach().to(device),
        gate_up=mlp.gate_up_proj.weight.detach().to(device),
        activation=mlp.activation_fn,
        down=mlp.down_proj.weight.detach().to(device),
        post_mlp_norm=layer.post_mlp_layernorm.weight.detach().to(device),
    )
