"""Ulysses sequence parallelism: the tokens of one picture, and the glyphs', spread over the ranks of a group.

Every rank computes its share of the tokens with all weights. Around attention the ranks trade tokens for heads: each
attends with its share of the heads over the whole sequence. Source: DeepSpeed-Ulysses (arXiv 2309.14509); diffusers has
no plan for this transformer.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from diffusers import GlmImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_glm_image import GlmImageLayerKVCache

from app.errors import Misconfigured

Rotary = tuple[torch.Tensor, torch.Tensor]


class Ulysses:
    """Makes a transformer compute this rank's share; latents go in and come out whole and the same on every rank.

    Hooks on the projections before and behind the blocks cut the tokens and join them again. What is known by patch,
    prior ids and rotary positions, must come in as this rank's `share`. Lengths that do not divide are padded for the
    wire alone: attention never sees a pad.
    """

    def __init__(self, transformer: GlmImageTransformer2DModel, group: dist.ProcessGroup) -> None:
        """Raises Misconfigured when the heads cannot be shared evenly."""
        self._group = group
        self._size = dist.get_world_size(group)
        self._rank = dist.get_rank(group)
        heads = transformer.config.num_attention_heads
        if heads % self._size:
            raise Misconfigured(
                f"sequence parallel over {self._size} devices: the {heads} attention heads of this model do not divide"
            )
        self._glyphs = self._patches = 0
        transformer.glyph_projector.register_forward_pre_hook(self._cut_glyphs)
        transformer.image_projector.register_forward_hook(self._cut_patches)
        transformer.proj_out.register_forward_hook(lambda _, __, out: self._joined(out))
        for block in transformer.transformer_blocks:
            block.attn1.set_processor(_Attention(self))

    def share(self, whole: torch.Tensor, dimension: int) -> torch.Tensor:
        """This rank's rows of a sequence, zeros behind its end; all ranks have equally many."""
        length = whole.shape[dimension]
        rows = -(-length // self._size)
        start = min(self._rank * rows, length)
        part = whole.narrow(dimension, start, min(rows, length - start))
        missing = rows - part.shape[dimension]
        if not missing:
            return part
        shape = list(part.shape)
        shape[dimension] = missing
        return torch.cat([part, part.new_zeros(shape)], dim=dimension)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a program would be bound to one picture's lengths
    def heads(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """From [1, rows of this rank, all heads, depth] to [1, whole sequence, heads of this rank, depth], of each.

        They are views of one tensor: whoever keeps one keeps all three.
        """
        of_ranks = [rows[0].unflatten(1, (self._size, -1)).transpose(0, 1) for rows in (query, key, value)]  # type: ignore[no-untyped-call]
        whole = self._traded(torch.stack(of_ranks, dim=2)).flatten(0, 1)
        kept, _ = _places(self._glyphs, self._patches, self._size, whole.device)
        return (whole if kept is None else whole.index_select(0, kept))[None].unbind(2)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def rows(self, heads: torch.Tensor) -> torch.Tensor:
        """From [1, whole sequence, heads of this rank, depth] back to [1, rows of this rank, all heads * depth]."""
        _, back = _places(self._glyphs, self._patches, self._size, heads.device)
        whole = heads[0] if back is None else heads[0].index_select(0, back)
        parts = self._traded(whole.view(self._size, -1, *whole.shape[1:]))
        return parts.transpose(0, 1).flatten(1)[None]

    def _traded(self, parts: torch.Tensor) -> torch.Tensor:
        """Part i goes to rank i; what comes from rank i is part i."""
        given = parts.contiguous()
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self._group)
        return taken

    def _cut_glyphs(self, _: torch.nn.Module, given: tuple[Any, ...]) -> tuple[torch.Tensor]:
        self._glyphs = given[0].shape[1]
        return (self.share(given[0], 1),)

    def _cut_patches(self, _: torch.nn.Module, __: object, projected: torch.Tensor) -> torch.Tensor:
        self._patches = projected.shape[1]
        return self.share(projected, 1)

    def _joined(self, rows: torch.Tensor) -> torch.Tensor:
        """The predictions of all ranks, [1, patches, channels]."""
        parts = rows.new_empty((self._size, *rows.shape[1:]))
        dist.all_gather_single(parts, rows.contiguous(), group=self._group)
        return parts.flatten(0, 1)[None, : self._patches]


class _Attention:
    """`GlmImageAttnProcessor` with the trade of tokens for heads around attention, for one picture, without a mask.

    `image_rotary_emb` is this rank's share. A cache of condition images holds this rank's heads of whole images.
    """

    def __init__(self, ulysses: Ulysses) -> None:
        self._ulysses = ulysses

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: None = None,
        image_rotary_emb: Rotary | None = None,
        kv_cache: GlmImageLayerKVCache | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        glyphs = encoder_hidden_states.shape[1]
        joined = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        query, key, value = self._ulysses.heads(
            _rotated(attn.norm_q(_by_head(attn, attn.to_q(joined))).to(joined.dtype), glyphs, image_rotary_emb),
            _rotated(attn.norm_k(_by_head(attn, attn.to_k(joined))).to(joined.dtype), glyphs, image_rotary_emb),
            _by_head(attn, attn.to_v(joined)),
        )
        if kv_cache is not None and kv_cache.mode == "write":
            kv_cache.store(key.clone(), value.clone())
        elif kv_cache is not None and kv_cache.mode == "read":
            key, value = kv_cache.get(key, value)
        attended = dispatch_attention_fn(query, key, value).to(joined.dtype)
        rows = attn.to_out[1](attn.to_out[0](self._ulysses.rows(attended)))
        return rows[:, glyphs:], rows[:, :glyphs]


def _by_head(attn: Attention, rows: torch.Tensor) -> torch.Tensor:
    return rows.view(1, -1, attn.heads, rows.shape[-1] // attn.heads)


def _rotated(rows: torch.Tensor, glyphs: int, rotary: Rotary | None) -> torch.Tensor:
    """Positions are the patches' alone."""
    patches = apply_rotary_emb(rows[:, glyphs:], rotary, sequence_dim=1, use_real_unbind_dim=-2)
    return torch.cat([rows[:, :glyphs], patches], dim=1)


@lru_cache(maxsize=64)
def _places(
    glyphs: int, patches: int, size: int, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where the true rows lie among all ranks' rows, and for each of those its place among the true ones.

    A pad's place is any: what is computed for it is cut off at the end. None, None where there are no pads.
    """
    shares = -(-glyphs // size), -(-patches // size)
    if (shares[0] * size, shares[1] * size) == (glyphs, patches):
        return None, None
    true = []
    for rank in range(size):
        for share, length in zip(shares, (glyphs, patches), strict=True):
            true.append(torch.arange(rank * share, (rank + 1) * share) < length)
    kept = torch.cat(true)
    back = (kept.cumsum(0) - 1).clamp(min=0)
    return kept.nonzero().flatten().to(device), back.to(device)
