"""Step caching: steps whose first block changes little reuse what the other blocks added at an earlier step.

By diffusers' own means: `FirstBlockCacheConfig` and the transformer's cache mixin.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers import FirstBlockCacheConfig, GlmImageTransformer2DModel
from diffusers.hooks._helpers import TransformerBlockMetadata, TransformerBlockRegistry
from diffusers.models.transformers.transformer_glm_image import GlmImageTransformerBlock

#: What diffusers must know of a block and says of its other models' blocks, but not of this one.
_BLOCK = TransformerBlockMetadata(return_hidden_states_index=0, return_encoder_hidden_states_index=1)


class StepCache:
    """What blocks added at earlier steps of one picture, apart for each CFG branch."""

    def __init__(self, transformer: GlmImageTransformer2DModel, setting: str | None) -> None:
        """`setting` is "first-block:THRESHOLD" as the settings have checked it; None: every step is computed."""
        self.setting = setting
        self._transformer = transformer
        if setting is not None:
            TransformerBlockRegistry.register(GlmImageTransformerBlock, _BLOCK)
            transformer.enable_cache(FirstBlockCacheConfig(threshold=float(setting.partition(":")[2])))

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        """Around a pass of the CFG branch `name`, which is compared with its own last pass."""
        if self.setting is None:
            yield
            return
        with self._transformer.cache_context(name):
            yield

    @contextmanager
    def computed(self) -> Iterator[None]:
        """Around a pass all of whose blocks must be computed: one that reads a condition image."""
        with self.emptied(), self.branch("computed"):
            yield

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Around a picture: it leaves nothing to the next one, however it ends."""
        try:
            yield
        finally:
            if self.setting is not None:
                self._transformer._reset_stateful_cache()
