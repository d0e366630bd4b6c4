import json
import shutil

import pytest

from app.checkpoint import AR_PARTS, DIT_PARTS, Checkpoint, loading
from app.errors import BrokenCheckpoint

PARTS = AR_PARTS + DIT_PARTS


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    shutil.copytree(tiny_checkpoint.folder, tmp_path / "copy")
    return Checkpoint(tmp_path / "copy")


def test_whole_checkpoints_pass(tiny_checkpoint, demo_checkpoint):
    tiny_checkpoint.verify(PARTS)
    demo_checkpoint.verify(PARTS)


@pytest.mark.parametrize(
    "name",
    [
        "processor/tokenizer.json",
        "processor/chat_template.jinja",
        "vision_language_encoder/config.json",
        "vision_language_encoder/model.safetensors",
        "text_encoder/model.safetensors",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
    ],
)
def test_a_missing_file_is_named(name, copy):
    copy.part(name).unlink()
    with pytest.raises(BrokenCheckpoint, match=f"{name} is missing"):
        copy.verify(PARTS)


def test_only_the_parts_asked_for_count(copy):
    shutil.rmtree(copy.part("vae"))
    copy.verify(AR_PARTS)
    with pytest.raises(BrokenCheckpoint, match="vae"):
        copy.verify(DIT_PARTS)


@pytest.mark.parametrize(("kept", "complaint"), [(-1, "header promises"), (20, "cut off"), (4, "cut off")])
def test_cut_off_weights_are_named(kept, complaint, copy):
    path = copy.part("vae/diffusion_pytorch_model.safetensors")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(BrokenCheckpoint, match=f"vae/diffusion_pytorch_model.safetensors .*{complaint}"):
        copy.verify(PARTS)


def test_weights_that_are_not_safetensors_are_named(copy):
    path = copy.part("text_encoder/model.safetensors")
    path.write_bytes((2).to_bytes(8, "little") + b"no")
    with pytest.raises(BrokenCheckpoint, match=r"text_encoder/model.safetensors is not a safetensors file"):
        copy.verify(PARTS)


@pytest.mark.parametrize(("text", "complaint"), [("{", "cannot be read"), ("[]", "not a JSON object")])
def test_broken_json_is_named(text, complaint, copy):
    copy.part("transformer/config.json").write_text(text)
    with pytest.raises(BrokenCheckpoint, match=f"transformer/config.json .*{complaint}"):
        copy.verify(PARTS)


def test_every_shard_of_an_index_counts(copy):
    folder = copy.part("transformer")
    whole = folder / "diffusion_pytorch_model.safetensors"
    first, second = (f"diffusion_pytorch_model-{i:05}-of-00002.safetensors" for i in (1, 2))
    whole.rename(folder / first)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": first, "b": second}}))
    with pytest.raises(BrokenCheckpoint, match=f"{second} is missing"):
        copy.verify(PARTS)
    shutil.copy(folder / first, folder / second)
    copy.verify(PARTS)
    index.write_text("{}")
    with pytest.raises(BrokenCheckpoint, match="no weight_map"):
        copy.verify(PARTS)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BrokenCheckpoint, match="nowhere does not exist"):
        Checkpoint(tmp_path / "nowhere").verify(PARTS)


def test_an_empty_chat_template_is_named(copy):
    copy.part("processor/chat_template.jinja").write_text(" ")
    with pytest.raises(BrokenCheckpoint, match=r"chat_template.jinja is missing or empty"):
        copy.verify(PARTS)


def test_what_a_library_raises_becomes_one_sentence(copy):
    with pytest.raises(BrokenCheckpoint, match="cannot be loaded") as broken, loading(copy):
        raise KeyError("a bad\n   thing")
    assert "\n" not in str(broken.value)
