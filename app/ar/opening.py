"""What a row starts from: the ids that it reads, the positions that it goes through, or why it cannot start."""

from dataclasses import dataclass

import torch

from app.ar.condition import ImageTokenizer
from app.ar.prompt import PromptEncoder, decode_positions, edit_positions
from app.ar.request import ArRequest
from app.domain.prior import PriorTokens
from app.errors import ImageFailed
from app.pictures import fits


@dataclass(frozen=True, slots=True)
class Opening:
    """`positions` [3, ids + tokens to draw]. Of what is drawn, the first `preview_tokens` are thrown away."""

    ids: list[int]
    positions: torch.Tensor
    preview_tokens: int
    condition: tuple[PriorTokens, ...] = ()

    @property
    def total_tokens(self) -> int:
        return self.positions.shape[1] - len(self.ids)


class Opener:
    """Reads requests, text-to-image and edits."""

    def __init__(
        self,
        prompts: PromptEncoder,
        images: ImageTokenizer,
        *,
        max_prompt_tokens: int,
        max_pixels: int,
        capacity: int,
    ) -> None:
        """`capacity`: the positions of a KV slot. An edit plans no preview, which leaves that much more for images."""
        self._prompts = prompts
        self._images = images
        self._max_prompt_tokens = max_prompt_tokens
        self._max_pixels = max_pixels
        self._capacity = capacity

    def read(self, request: ArRequest) -> Opening:
        """Raises ImageFailed for what cannot be planned."""
        if request.size.pixels > self._max_pixels:
            raise ImageFailed("size_too_large", f"the picture must have at most {self._max_pixels} pixels")
        try:
            return self._edit(request) if request.images else self._text_to_image(request)
        except UnicodeEncodeError:
            raise ImageFailed("invalid_prompt", "the prompt is not valid Unicode text") from None

    def _text_to_image(self, request: ArRequest) -> Opening:
        ids = self._prompts.encode(request.prompt, request.size)
        if len(ids) > self._max_prompt_tokens:
            raise ImageFailed(
                "prompt_too_long", f"the prompt takes {len(ids)} tokens of at most {self._max_prompt_tokens}"
            )
        ramp = torch.arange(len(ids)).expand(3, -1)
        positions = torch.cat((ramp, decode_positions(len(ids), request.size)), dim=1)
        return Opening(ids, positions, request.size.preview_grid.tokens)

    def _edit(self, request: ArRequest) -> Opening:
        try:
            prompt = self._prompts.encode_edit(request.prompt, request.size, request.images)
        except UnicodeEncodeError:  # a ValueError, too
            raise
        except ValueError as error:  # a side below half a cell, or longer than 4:1
            raise ImageFailed("invalid_image", f"a condition image cannot be read: {error}") from None
        for number, (image, grid) in enumerate(zip(request.images, prompt.grids, strict=True), start=1):
            if not fits(image, grid):
                raise ImageFailed(
                    "invalid_image",
                    f"condition image {number} has {image.width}x{image.height} pixels, which this model's "
                    f"{grid.width}x{grid.height} tokens do not fit; it must be prepared first",
                )
        read, drawn = len(prompt.ids), request.size.large_grid.tokens
        if read + drawn > self._capacity:
            images = sum(grid.tokens for grid in prompt.grids)
            raise ImageFailed(
                "prompt_too_long",
                f"the prompt takes {read} tokens, {images} of them for its {len(prompt.grids)} images, and the picture "
                f"{drawn}; together at most {self._capacity}",
            )
        condition = self._images.encode(prompt.pixels, prompt.grids)
        positions = edit_positions(prompt, request.size)
        return Opening(prompt.filled(condition), positions, 0, condition)
