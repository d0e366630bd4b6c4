"""From a prompt and a size to what the AR model reads: input ids, and the decode positions that follow them.

Source: `GlmImagePipeline.generate_prior_tokens` and `GlmImageModel.get_rope_index`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from transformers import GlmImageProcessor

from app.domain.prior import PriorTokens
from app.domain.sizes import Grid, Size


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """An edit's prompt: `placeholder` stands in `ids` for each token of the images, which have these grids.

    `pixels` are the images' patches, [patches of all, numbers of one].
    """

    ids: list[int]
    placeholder: int
    pixels: torch.Tensor
    grids: tuple[Grid, ...]

    def filled(self, condition: Sequence[PriorTokens]) -> list[int]:
        """The ids with the images' own in place."""
        codes: Iterator[int] = iter([code for prior in condition for code in prior.ids])
        return [next(codes) if token == self.placeholder else token for token in self.ids]


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
        ids: list[int] = self._inputs(prompt, size, ())["input_ids"][0].tolist()
        return ids

    def encode_edit(self, prompt: str, size: Size, images: Sequence[Image]) -> EditPrompt:
        """The same with images before the prompt, and one grid size: edits plan no preview.

        Raises UnicodeEncodeError as above, and ValueError for an image that the image processor does not take.
        """
        inputs = self._inputs(prompt, size, images)
        grids = tuple(Grid(height, width) for _, height, width in inputs["image_grid_thw"][:-1].tolist())
        ids: list[int] = inputs["input_ids"][0].tolist()
        return EditPrompt(ids, self._processor.image_token_id, inputs["pixel_values"], grids)

    def _inputs(self, prompt: str, size: Size, images: Sequence[Image]) -> dict[str, Any]:
        prompt.encode("utf-8")  # the tokenizer's own complaint is a TypeError that does not name the cause
        content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
        content.append({"type": "text", "text": self._defused(prompt)})
        inside = size.inside
        inputs: dict[str, Any] = self._processor.apply_chat_template(
            [[{"role": "user", "content": content}]],
            tokenize=True,
            return_dict=True,
            # Given as plain keywords they work too, but log a warning at every call.
            processor_kwargs={
                "target_h": inside.height,
                "target_w": inside.width,
                "padding": False,
                "return_tensors": "pt",
            },
        )
        return inputs

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


def edit_positions(prompt: EditPrompt, size: Size) -> torch.Tensor:
    """Positions of an edit's prompt and then of the large grid's tokens: [3, tokens].

    An image's tokens lie in its grid, and what follows goes on behind the grid's longer side, so that the prompt takes
    fewer positions than it has tokens.
    """
    parts, done, position = [], 0, 0
    for grid in prompt.grids:
        start = prompt.ids.index(prompt.placeholder, done)
        parts.append(_line_positions(start - done, position))
        position += start - done
        parts.append(_grid_positions(grid, position))
        position += max(grid.height, grid.width)
        done = start + grid.tokens
    rest = len(prompt.ids) - done
    return torch.cat(
        (*parts, _line_positions(rest, position), _grid_positions(size.large_grid, position + rest)), dim=1
    )


def _line_positions(tokens: int, start: int) -> torch.Tensor:
    return torch.arange(start, start + tokens).expand(3, -1)


def _grid_positions(grid: Grid, start: int) -> torch.Tensor:
    rows = torch.arange(grid.height).repeat_interleave(grid.width)
    columns = torch.arange(grid.width).repeat(grid.height)
    return start + torch.stack((torch.zeros_like(rows), rows, columns))
