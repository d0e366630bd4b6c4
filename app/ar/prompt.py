"""From a prompt and a size to what the AR model reads: input ids, and the decode positions that follow them.

Source: `GlmImagePipeline.generate_prior_tokens` and `GlmImageModel.get_rope_index`, text-to-image.
"""

import torch
from transformers import GlmImageProcessor

from app.domain.sizes import Grid, Size


class PromptEncoder:
    """Tokenizes prompts with the checkpoint's processor, exactly as the reference pipeline does for one prompt."""

    def __init__(self, processor: GlmImageProcessor) -> None:
        self._processor = processor
        tokens = {token.content for token in processor.tokenizer.added_tokens_decoder.values()}
        self._control = frozenset(token for token in tokens if len(token) > 1 and not token.isspace())
        self._starts = frozenset(token[0] for token in self._control)
        self._lengths = sorted({len(token) for token in self._control})

    def encode(self, prompt: str, size: Size) -> list[int]:
        """The input ids: the chat template around the prompt, the two grid sizes, the image start token.

        Raises UnicodeEncodeError for text that is not valid Unicode (a lone surrogate).
        """
        prompt.encode("utf-8")  # the tokenizer's own complaint is a TypeError that does not name the cause
        conversation = [{"role": "user", "content": [{"type": "text", "text": self._defused(prompt)}]}]
        inside = size.inside
        inputs = self._processor.apply_chat_template(
            [conversation],
            tokenize=True,
            return_dict=True,
            # Given as plain keywords they work too, but log a warning at every call.
            processor_kwargs={"target_h": inside.height, "target_w": inside.width, "padding": False},
        )
        ids: list[int] = inputs["input_ids"][0]
        return ids

    def _defused(self, prompt: str) -> str:
        """The prompt with a space inside every control token that its author spelled out.

        Text such as `<|image|>` or `<sop>` would become the control token itself: the reference processor refuses the
        first and reads a wrong grid from the second. With the space it is ordinary text to the tokenizer.
        """
        return "".join(f"{char} " if self._begins_control(prompt, at) else char for at, char in enumerate(prompt))

    def _begins_control(self, prompt: str, at: int) -> bool:
        # A tokenizer may have thousands of them, one a code: a regular expression of them all would take seconds.
        return prompt[at] in self._starts and any(prompt[at : at + length] in self._control for length in self._lengths)


def decode_positions(prompt_tokens: int, size: Size) -> torch.Tensor:
    """Positions of the preview grid's and then the large grid's tokens: [3 (temporal, height, width), tokens]."""
    preview, large = size.preview_grid, size.large_grid
    large_start = prompt_tokens + max(preview.height, preview.width)
    return torch.cat((_grid_positions(preview, prompt_tokens), _grid_positions(large, large_start)), dim=1)


def _grid_positions(grid: Grid, start: int) -> torch.Tensor:
    rows = torch.arange(grid.height).repeat_interleave(grid.width)
    columns = torch.arange(grid.width).repeat(grid.height)
    return start + torch.stack((torch.zeros_like(rows), rows, columns))
