"""The reference: transformers' own model and processor, driven as `GlmImagePipeline` drives them, in float32."""

from dataclasses import dataclass

import pytest
import torch
from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

from app.ar.engine import ArEngine
from app.checkpoint import Checkpoint
from app.domain.sizes import Size

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


@dataclass(frozen=True, slots=True)
class Reference:
    model: GlmImageForConditionalGeneration
    processor: GlmImageProcessor

    def inputs(self, prompt: str, size: Size):
        """What `GlmImagePipeline.generate_prior_tokens` hands to generate()."""
        return self.processor.apply_chat_template(
            [[{"role": "user", "content": [{"type": "text", "text": prompt}]}]],
            tokenize=True,
            padding=False,
            target_h=size.inside.height,
            target_w=size.inside.width,
            return_dict=True,
            return_tensors="pt",
        )

    def greedy(self, prompt: str, size: Size) -> tuple[int, ...]:
        """The large grid's ids. The checkpoints' generation_config suppresses the ids outside the codebook."""
        inputs = self.inputs(prompt, size)
        preview = size.preview_grid.tokens
        count = preview + size.large_grid.tokens
        with torch.inference_mode():
            ids = self.model.generate(**inputs, max_new_tokens=count, do_sample=False)
        return tuple(ids[0, inputs["input_ids"].shape[1] + preview :].tolist())


def _reference(checkpoint: Checkpoint) -> Reference:
    folder = checkpoint.part("vision_language_encoder")
    model = GlmImageForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    # Greedy search warns about parameters that only sampling reads.
    model.generation_config.update(temperature=None, top_p=None, top_k=None)
    return Reference(
        model.eval(), GlmImageProcessor.from_pretrained(checkpoint.part("processor"), local_files_only=True)
    )


def _engine(checkpoint: Checkpoint) -> ArEngine:
    return ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=6,
        max_prompt_tokens=256,
        max_pixels=512 * 512,
    )


@pytest.fixture(scope="session")
def references(demo_checkpoint, tiny_checkpoint):
    return {"demo": _reference(demo_checkpoint), "tiny": _reference(tiny_checkpoint)}


@pytest.fixture(scope="session")
def loaded(demo_checkpoint, tiny_checkpoint):
    return {"demo": _engine(demo_checkpoint), "tiny": _engine(tiny_checkpoint)}


@pytest.fixture
def engines(loaded):
    """Engines by checkpoint, shared by the tests and idle before each of them."""
    yield loaded
    for engine in loaded.values():
        for key in engine.running:
            engine.evict(key)
