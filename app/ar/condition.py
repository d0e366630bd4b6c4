"""Condition images of an edit as codebook ids, by the checkpoint's own vision tower and codebook.

Source: `GlmImageModel.get_image_features` and `get_image_tokens`.
"""

from collections.abc import Sequence

import torch
from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel, GlmImageVQVAE

from app.ar.weights import Weights
from app.domain.prior import PriorTokens
from app.domain.sizes import Grid


class ImageTokenizer:
    """One token for each 32x32 pixels of a picture; needed once a row, when it is admitted."""

    def __init__(self, weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        with torch.device("meta"):
            visual = GlmImageVisionModel._from_config(weights.config.vision_config)
            vqmodel = GlmImageVQVAE._from_config(weights.config.vq_config)
        weights.fill(visual, "model.visual.")
        weights.fill(vqmodel, "model.vqmodel.")
        self._visual = visual.to(device, dtype)
        # Many codes are nearly as near as the nearest. In bfloat16 their distances tie: on the demo checkpoint the ids
        # then agree with float32's in 42 % of the cells, and with the search alone in float32 in 99.8 %.
        self._codebook = vqmodel.to(device, torch.float32)

    def encode(self, pixels: torch.Tensor, grids: Sequence[Grid]) -> tuple[PriorTokens, ...]:
        """The ids of pictures that the image processor has cut into patches, [patches of all, numbers of one].

        All pictures of one request in one pass, as the reference does, and no other request's with them: a row's ids
        must not depend, not even by a last bit that flips a code, on what it is admitted with.
        """
        sizes = torch.tensor([(1, grid.height, grid.width) for grid in grids], device=self._device)
        hidden = self._visual(pixels.to(self._device, self._dtype), grid_thw=sizes).last_hidden_state
        features = hidden.split([grid.tokens for grid in grids])
        return tuple(PriorTokens(grid, self._nearest(cells, grid)) for cells, grid in zip(features, grids, strict=True))

    def _nearest(self, cells: torch.Tensor, grid: Grid) -> tuple[int, ...]:
        features = cells.view(1, grid.height, grid.width, -1).permute(0, 3, 1, 2).contiguous().float()
        return tuple(self._codebook.encode(features).image_tokens.tolist())
