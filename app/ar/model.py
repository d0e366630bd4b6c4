"""The AR decoder's forward pass over KV slots, with the weights of transformers' `GlmImageForConditionalGeneration`.

The module's own forward keeps the decode positions and one step counter on itself, so that all its rows must be at the
same step. Here every row brings its positions and its length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional
from transformers import GlmImageForConditionalGeneration, GlmImageProcessor
from transformers.models.glm_image.modeling_glm_image import GlmImageTextDecoderLayer
from transformers.utils import logging as transformers_logging

from app.ar.kv_cache import KvCache
from app.ar.packed import PackedLinear
from app.checkpoint import Checkpoint
from app.errors import BrokenCheckpoint

#: Takes a layer's index and its queries, keys and values [tokens, heads + 2 * kv_heads, head_dim], keys and queries
#: rotated; stores keys and values, and returns the attention's result [tokens, heads * head_dim].
_Attend = Callable[[int, torch.Tensor], torch.Tensor]
#: Takes inputs [tokens, inputs], a weight and a bias or none; the products [tokens, outputs].
_Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


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
        self._linear: _Linear = functional.linear
        self._epsilon: float = config.rms_norm_eps
        self._rotary = language_model.rotary_emb
        self.rotary_dim: int = 2 * self._rotary.inv_freq.shape[0]
        self._embedding = language_model.embed_tokens.weight.detach().to(device)
        self._layers = [_fuse(layer, device) for layer in language_model.layers]
        self._floor = torch.tensor(self._epsilon, device=device)
        self._seen = torch.zeros((), device=device, dtype=self.dtype)
        self._hidden = torch.full((), -torch.inf, device=device, dtype=self.dtype)
        self._norm = language_model.norm.weight.detach().to(device)
        # Only the codebook's rows: the head can also name start, end and unused ids, which garble or crash the DiT.
        codes = model.config.vq_config.num_embeddings
        self._head = model.lm_head.weight.detach()[:codes].to(device)

    @property
    def weight_bytes(self) -> int:
        """What every step reads: all weights but the embedding, of which it reads a line a row."""
        layers = [value for layer in self._layers for value in (getattr(layer, name) for name in _Layer.__slots__)]
        weights = [self._head, self._norm, *layers]
        return sum(value.nbytes for value in weights if isinstance(value, torch.Tensor))

    def pack(self, linear: PackedLinear) -> None:
        """Lay the weights out for `linear` and use it from now on. Float32 on a CPU only.

        Raises ValueError, before anything has changed, for widths that it cannot take.
        """
        packed = [
            replace(
                layer,
                qkv=linear.pack(layer.qkv),
                output=linear.pack(layer.output),
                gate_up=linear.pack(layer.gate_up),
                down=linear.pack(layer.down),
            )
            for layer in self._layers
        ]
        self._head, self._layers, self._linear = linear.pack(self._head), packed, linear

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
        return self._linear(hidden[-1:], self._head, None)

    def decode(
        self,
        tokens: torch.Tensor,
        rotary: torch.Tensor,
        lengths: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        cache: KvCache,
    ) -> torch.Tensor:
        """Feed one token to each of the slots 0..rows-1; logits [rows, codes].

        `tokens` [rows], `rotary` [rows, 2, rotary_dim], `lengths` [rows] (positions already stored, which is where this
        token's key and value go), `slots` [0, ..., rows - 1] and `positions` [0, ..., seen - 1]: how far attention
        looks, a multiple of `BLOCK` past every length. Asks the device for nothing and branches on no value.
        """
        rows, seen = slots.shape[0], positions.shape[0]
        # A query head's group shares its keys, so the group stands where other models have query positions: the keys
        # need no repeating.
        group = self.heads // self.kv_heads
        visible = positions <= lengths[:, None]
        mask = visible[:, None, None].expand(rows, 1, group, seen)
        if self.device.type == "cpu":
            # A CPU's kernel makes this of a boolean mask in every layer. Elsewhere the mask stays boolean: torch_npu
            # falls off its fused kernel, or worse, on float masks.
            mask = torch.where(visible, self._seen, self._hidden)[:, None, None].expand(rows, 1, group, seen)

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            layer = cache.layers[index]
            query = qkv[:, : self.heads].view(rows, self.kv_heads, group, self.head_dim)
            layer[slots, :, :, lengths] = qkv[:, self.heads :].view(rows, 2, self.kv_heads, self.head_dim)
            keys, values = layer[:rows, :, :, :seen].unbind(1)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            return mixed.reshape(rows, -1)

        return self._linear(self._forward(tokens, rotary, attend), self._head, None)

    def _forward(self, tokens: torch.Tensor, rotary: torch.Tensor, attend: _Attend) -> torch.Tensor:
        """Hidden states [tokens, hidden] after the last norm; prefill and decode differ in `attend` only."""
        cosine, sine = rotary[:, None, 0], rotary[:, None, 1]
        rotated = self.heads + self.kv_heads
        hidden = functional.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = self._linear(self._normed(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(tokens.shape[0], -1, self.head_dim)
            _rotate(qkv[:, :rotated], cosine, sine)
            mixed = self._linear(attend(index, qkv), layer.output, None)
            hidden = hidden + self._normed(mixed, layer.post_self_attn_norm)
            gate, up = self._linear(self._normed(hidden, layer.post_attention_norm), layer.gate_up, None).chunk(2, -1)
            mixed = self._linear(layer.activation(gate).mul_(up), layer.down, None)
            hidden = hidden + self._normed(mixed, layer.post_mlp_norm)
        return self._normed(hidden, self._norm)

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.device.type != "cpu":  # one kernel
            return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)
        # torch has no kernel of it for CPUs, and what it does instead takes three times as long as these few calls.
        # In float32 and for a width that is a power of two these are the bits of GlmImageRMSNorm.
        wide = hidden.float()
        power = (wide * wide).sum(-1, keepdim=True)
        scale = torch.add(self._floor, power, alpha=1 / weight.shape[0]).rsqrt_()
        return (wide * scale).to(self.dtype).mul_(weight)


def load_model(checkpoint: Checkpoint, dtype: torch.dtype) -> GlmImageForConditionalGeneration:
    """Read `vision_language_encoder` into host memory; what uses its parts takes them to a device."""
    transformers_logging.disable_progress_bar()
    folder = checkpoint.part("vision_language_encoder")
    # Without a dtype transformers takes the config's. Weights that are not in the files would be drawn at random.
    model, report = GlmImageForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    if report["missing_keys"]:
        raise BrokenCheckpoint(f"the checkpoint files in {folder} lack {sorted(report['missing_keys'])[0]}")
    return model.eval()


def load_processor(checkpoint: Checkpoint) -> GlmImageProcessor:
    return GlmImageProcessor.from_pretrained(checkpoint.part("processor"), local_files_only=True)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotate the first rotary_dim numbers of every head in place (`apply_rotary_pos_emb`); the rest pass."""
    rotary_dim = cosine.shape[-1]
    part = heads[..., :rotary_dim]
    swapped = part.roll(rotary_dim // 2, -1)
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
