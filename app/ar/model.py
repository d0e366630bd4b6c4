"""The AR decoder's forward pass over KV slots, with the weights of transformers' `GlmImageForConditionalGeneration`.

The module's own forward keeps the decode positions and one step counter on itself, so that all its rows must be at the
same step. Here every row brings its positions and its length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional
from transformers import GlmImageProcessor
from transformers.activations import ACT2FN
from transformers.models.glm_image.modeling_glm_image import GlmImageTextRotaryEmbedding

from app.ar.kv_cache import KvCache
from app.ar.packed import PackedLinear
from app.ar.share import Share
from app.ar.weights import Weights
from app.checkpoint import Checkpoint
from app.ranks import Ranks

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
    """Hidden states of prompts (`prefill`) and codebook logits of one token of every row (`decode`).

    In a tensor-parallel group each rank holds its share of the heads and of the MLP's width, by the plan of
    Megatron-LM: two sums over the ranks a layer. Every rank then has the same logits and draws the same tokens.
    """

    def __init__(
        self, weights: Weights, device: torch.device, dtype: torch.dtype, *, ranks: Ranks | None = None
    ) -> None:
        """Take this rank's share of the weights. Raises Misconfigured for a model that so many ranks cannot share."""
        config = weights.config.text_config
        share = Share.of(config, ranks)
        self.device = device
        self.dtype = dtype
        self.layer_count: int = config.num_hidden_layers
        self.heads, self.kv_heads = share.heads, share.kv_heads
        self.head_dim: int = share.head_dim
        self._ranks = ranks
        self._linear: _Linear = functional.linear
        self._epsilon: float = config.rms_norm_eps
        self._rotary = GlmImageTextRotaryEmbedding(config)
        self.rotary_dim: int = 2 * self._rotary.inv_freq.shape[0]
        self._layers = [
            _layer(weights, f"model.language_model.layers.{index}.", share, device, dtype)
            for index in range(self.layer_count)
        ]
        self._floor = torch.tensor(self._epsilon, device=device)
        self._seen = torch.zeros((), device=device, dtype=dtype)
        self._hidden = torch.full((), -torch.inf, device=device, dtype=dtype)
        self._norm = weights["model.language_model.norm.weight"].to(device, dtype)
        # The words' rows, a sixth of the real model's memory at TP 4, stay in the file: a prompt needs a line a token.
        self._words = weights["model.language_model.embed_tokens.weight"]
        # Only the codebook's rows: the head can also name start, end and unused ids, which garble or crash the DiT.
        codes = weights.config.vq_config.num_embeddings
        self._codes = self._words[:codes].to(device, dtype)
        self._head = weights["lm_head.weight"][:codes].to(device, dtype)

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

    def prefill(self, ids: list[int], first: int, rotary: torch.Tensor, cache: KvCache, slot: int) -> torch.Tensor:
        """Read a prompt's tokens from number `first` on into a slot that holds those before it.

        Returns the last one's hidden state [1, hidden], from which `logits` come.

        One prompt at a time: prompts are short next to the grids, and this way there is no padding to get right and
        nothing that a row could take from the rows admitted with it.
        """
        seen = first + len(ids)
        mask = None
        if first:
            mask = torch.ones(len(ids), seen, device=self.device, dtype=torch.bool).tril(first)

        def attend(index: int, qkv: torch.Tensor) -> torch.Tensor:
            layer = cache.layers[index][slot]
            heads = qkv.transpose(0, 1)  # [heads + 2 * kv_heads, tokens, head_dim]
            layer[:, :, first:seen] = heads[self.heads :].view(2, self.kv_heads, len(ids), self.head_dim)
            keys, values = layer[:, None, :, :seen].unbind(0)
            mixed = functional.scaled_dot_product_attention(
                heads[None, : self.heads], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            return mixed[0].transpose(0, 1).reshape(len(ids), -1)

        hidden = self._words[torch.tensor(ids)].to(self.device, self.dtype)
        return self._forward(hidden, rotary, attend)[-1:]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, codes] of hidden states [rows, hidden]."""
        return self._linear(hidden, self._head, None)

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

        return self.logits(self._forward(functional.embedding(tokens, self._codes), rotary, attend))

    def _forward(self, hidden: torch.Tensor, rotary: torch.Tensor, attend: _Attend) -> torch.Tensor:
        """Hidden states [tokens, hidden], embedded, to those after the last norm; what differs is `attend`."""
        cosine, sine = rotary[:, None, 0], rotary[:, None, 1]
        rotated = self.heads + self.kv_heads
        for index, layer in enumerate(self._layers):
            qkv = self._linear(self._normed(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(hidden.shape[0], -1, self.head_dim)
            _rotate(qkv[:, :rotated], cosine, sine)
            mixed = self._summed(self._linear(attend(index, qkv), layer.output, None))
            hidden = hidden + self._normed(mixed, layer.post_self_attn_norm)
            gate, up = self._linear(self._normed(hidden, layer.post_attention_norm), layer.gate_up, None).chunk(2, -1)
            mixed = self._summed(self._linear(layer.activation(gate).mul_(up), layer.down, None))
            hidden = hidden + self._normed(mixed, layer.post_mlp_norm)
        return self._normed(hidden, self._norm)

    def _summed(self, partial: torch.Tensor) -> torch.Tensor:
        return partial if self._ranks is None else self._ranks.summed(partial)

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.device.type != "cpu":  # one kernel
            return functional.rms_norm(hidden, weight.shape, weight, self._epsilon)
        # torch has no kernel of it for CPUs, and what it does instead takes three times as long as these few calls.
        # In float32 and for a width that is a power of two these are the bits of GlmImageRMSNorm.
        wide = hidden.float()
        power = (wide * wide).sum(-1, keepdim=True)
        scale = torch.add(self._floor, power, alpha=1 / weight.shape[0]).rsqrt_()
        return (wide * scale).to(self.dtype).mul_(weight)


def load_processor(checkpoint: Checkpoint) -> GlmImageProcessor:
    return GlmImageProcessor.from_pretrained(checkpoint.part("processor"), local_files_only=True)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotate the first rotary_dim numbers of every head in place (`apply_rotary_pos_emb`); the rest pass."""
    rotary_dim = cosine.shape[-1]
    part = heads[..., :rotary_dim]
    swapped = part.roll(rotary_dim // 2, -1)
    part.mul_(cosine).add_(swapped.mul_(sine))


def _layer(weights: Weights, prefix: str, share: Share, device: torch.device, dtype: torch.dtype) -> _Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    names = ("q_proj", "k_proj", "v_proj")
    parts = (share.of_heads, share.of_kv_heads, share.of_kv_heads)
    bias = None
    if weights.get(f"{attention}q_proj.bias") is not None:
        bias = torch.cat([part(weights[f"{attention}{name}.bias"]) for name, part in zip(names, parts, strict=True)])
        bias = bias.to(device, dtype)
    qkv = torch.cat([part(weights[f"{attention}{name}.weight"]) for name, part in zip(names, parts, strict=True)])
    gate, up = weights[f"{mlp}gate_up_proj.weight"].chunk(2)
    return _Layer(
        input_norm=weights[f"{prefix}input_layernorm.weight"].to(device, dtype),
        qkv=qkv.to(device, dtype),
        qkv_bias=bias,
        output=share.inputs(weights[f"{attention}o_proj.weight"]).to(device, dtype).contiguous(),
        post_self_attn_norm=weights[f"{prefix}post_self_attn_layernorm.weight"].to(device, dtype),
        post_attention_norm=weights[f"{prefix}post_attention_layernorm.weight"].to(device, dtype),
        gate_up=torch.cat((share.outputs(gate), share.outputs(up))).to(device, dtype),
        activation=ACT2FN[weights.config.text_config.hidden_act],
        down=share.inputs(weights[f"{mlp}down_proj.weight"]).to(device, dtype).contiguous(),
        post_mlp_norm=weights[f"{prefix}post_mlp_layernorm.weight"].to(device, dtype),
    )
