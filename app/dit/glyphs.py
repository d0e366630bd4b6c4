"""Glyph embeddings: what the DiT is told about the letters to draw.

Source: `GlmImagePipeline.get_glyph_texts` and `_get_glyph_embeds`, for one prompt.
"""

import re

import torch
from transformers import ByT5Tokenizer, T5EncoderModel

#: Quoted text in its four styles, in the order in which the reference joins what it finds.
_QUOTED = (
    re.compile(r"'([^']*)'"),
    re.compile("\u201c([^\u201c\u201d]*)\u201d"),
    re.compile(r'"([^"]*)"'),
    re.compile(r"「([^「」]*)」"),
)
#: Longest glyph text, in ByT5 tokens (bytes); what is beyond is cut off.
_MAX_TOKENS = 2048


def glyph_texts(prompt: str) -> list[str]:
    """The texts in quotes, style by style."""
    return [text for quoted in _QUOTED for text in quoted.findall(prompt)]


class GlyphEncoder:
    """ByT5 over the quoted texts of a prompt."""

    def __init__(self, tokenizer: ByT5Tokenizer, encoder: T5EncoderModel) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder

    def encode(self, prompt: str) -> torch.Tensor:
        """Embeddings of all quoted texts one after the other, [1, tokens, d_model]; of "" when there are none."""
        texts = glyph_texts(prompt) or [""]
        rows: list[list[int]] = self._tokenizer(texts, max_length=_MAX_TOKENS, truncation=True).input_ids
        pad: int = self._tokenizer.pad_token_id
        # The reference means to make lengths even but counts the texts: an even number of them gets a pad each, which
        # is attended to and kept. The weights were trained on it.
        rows = [[pad] * ((len(rows) + 1) % 2) + row for row in rows]
        longest = max(len(row) for row in rows)
        device = self._encoder.device
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
        hidden: torch.Tensor = self._encoder(ids, attention_mask=mask).last_hidden_state
        return hidden[mask.bool()].unsqueeze(0)
