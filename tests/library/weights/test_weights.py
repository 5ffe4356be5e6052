"""Weights go to disk and come back whole; what is damaged, foreign or dangerous is refused in a line."""

from __future__ import annotations

import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

import mhprobe
from mhprobe.backbones import build
from mhprobe.framework.training.checkpoints import AtomicCheckpointIO
from mhprobe.weights.checkpoint import as_json, load_checkpoint, load_weights, save_weights
from models import images_for

BACKBONE = {
    **{"name": "vit_tiny_patch16_224", "img_size": 16, "patch_size": 4},
    **{"embed_dim": 24, "depth": 2, "num_heads": 3},
}
DESCRIPTION = {
    "backbone": BACKBONE,
    "class_names": ["ape", "bee", "cat", "dog"],
    "data": "zoo",
    "input": {"size": [16, 16], "mean": [0.5] * 3, "std": [0.5] * 3},
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return build(**BACKBONE, num_classes=4).eval()


@pytest.fixture
def file(model, tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_weights(model, path, DESCRIPTION)
    return path


def checkpoint_of(model) -> dict:
    state = {f"backbone.{key}": value for key, value in model.state_dict().items()}
    return {"state_dict": {**state, "gates.values": torch.ones(6)}, "mhprobe": DESCRIPTION}


@pytest.fixture
def checkpoint(model, tmp_path) -> Path:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), path)
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(mhprobe.UserError) as error:
        load_weights(path)
    line = str(error.value)
    assert str(path.with_suffix("")) in line and "\n" not in line
    for word in words:
        assert word in line


def edit(file: Path, **changes: Any) -> None:
    """Change the JSON as somebody would who also knows how to write its digest."""
    path = file.with_suffix(".json")
    path.write_bytes(as_json({**json.loads(path.read_text()), **changes}))


def test_a_pair_comes_back_with_the_same_bits(model, file):
    loaded, description = load_weights(file)
    assert {key: description[key] for key in DESCRIPTION} == DESCRIPTION
    assert not loaded.training
    images = images_for(model, 3)
    assert torch.equal(loaded(images), model(images))
    assert torch.equal(mhprobe.load(file)(images), model(images))


def test_a_checkpoint_comes_back_with_the_same_bits(model, checkpoint):
    images = images_for(model, 3)
    assert torch.equal(load_weights(checkpoint)[0](images), model(images))


def test_torch_reads_a_checkpoint_too_and_one_of_torch_is_read(model, checkpoint, tmp_path):
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    plain = tmp_path / "plain.ckpt"
    torch.save(checkpoint_of(model), plain)
    assert state.keys() == load_checkpoint(plain)["state_dict"].keys()
    assert all(
        torch.equal(state[f"backbone.{key}"], value) for key, value in model.state_dict().items()
    )


def test_float16_halves_the_file_and_loads_as_float32(model, file, tmp_path):
    half = tmp_path / "half.safetensors"
    save_weights(model, half, DESCRIPTION, dtype=torch.float16)
    assert half.stat().st_size < 0.6 * file.stat().st_size
    loaded = load_weights(half)[0].state_dict()
    for key, value in model.state_dict().items():
        assert loaded[key].dtype == torch.float32
        assert torch.equal(loaded[key], value.half().float()), key


def test_the_file_is_plain_timm(model, file):
    settings = {key: value for key, value in BACKBONE.items() if key != "name"}
    bare = timm.create_model(BACKBONE["name"], num_classes=4, **settings)
    bare.load_state_dict(safetensors.torch.load_file(file), strict=True)
    images = images_for(model, 2)
    assert torch.equal(bare.eval()(images), model(images))


def test_gates_come_along_where_they_are_not_one(model, tmp_path):
    path = tmp_path / "gated.safetensors"
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values[4] = 0.25
    save_weights(model, path, DESCRIPTION)
    loaded, _ = load_weights(path)
    assert torch.equal(mhprobe.attach(loaded).values, gates.values)
    images = images_for(model, 2)
    assert torch.equal(loaded(images), model(images))
    ungated = build(**BACKBONE, num_classes=4).eval()
    ungated.load_state_dict(safetensors.torch.load_file(path))
    assert not torch.equal(ungated(images), model(images))  # the gate does something


def test_gates_of_neurons_alone_come_along(model, tmp_path):
    gates = mhprobe.attach(model, units={"neuron"})
    with torch.no_grad():
        gates.values[4] = 0.25
    save_weights(model, tmp_path / "gated.safetensors", DESCRIPTION)
    loaded, _ = load_weights(tmp_path / "gated.safetensors")
    images = images_for(model, 2)
    assert torch.equal(loaded(images), model(images))


def test_gates_of_another_layout_are_refused(model, file):
    for count, expected in ((5, "6."), (7, "6 of heads, or 198 with neurons.")):
        edit(file, gates=[0.5] * count)
        refused(file, f"has {count} gates, expected {expected}")


def test_a_missing_file_a_missing_json_and_a_damaged_json_are_refused(file, tmp_path):
    refused(tmp_path / "nowhere.safetensors", "no file")
    file.with_suffix(".json").write_text('{"backbone": ')
    refused(file, "json")
    file.with_suffix(".json").unlink()
    refused(file, "json", "missing")


def test_one_flipped_bit_is_refused(file, checkpoint):
    for path in (file, checkpoint):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    refused(file, "sha256")
    refused(checkpoint, "damaged")


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_is_refused(file, checkpoint, share):
    for path in (file, checkpoint):
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
    refused(file, "sha256" if share else "is empty (0 bytes)", "again")
    refused(checkpoint, "truncated" if share else "is empty (0 bytes)")


def test_another_architecture_than_the_json_names_is_refused(file):
    edit(file, backbone={**BACKBONE, "embed_dim": 48})
    refused(file, "does not fit")


def test_files_of_others_are_refused(model, tmp_path):
    path = tmp_path / "other.ckpt"
    torch.save({"state_dict": {"layer.weight": torch.zeros(1)}}, path)
    refused(path, "not a checkpoint of mhprobe")
    pair = tmp_path / "other.safetensors"
    save_weights(model, pair, {"about": "a model of somebody else"})
    refused(pair, "backbone")


class Harmful:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_code_in_a_checkpoint_is_refused_and_never_run(model, tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "bad.ckpt"
    torch.save({**checkpoint_of(model), "more": Harmful(mark)}, path)
    refused(path, "code")
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # the file was dangerous
    mark.unlink()
    path.write_bytes(pickle.dumps(Harmful(mark)))
    refused(path)
    assert not mark.exists()


def test_a_full_disk_leaves_what_was_there(model, file, checkpoint, monkeypatch):
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}

    def full(_):
        raise OSError(28, "No space left on device")

    with torch.no_grad():
        model.head.bias += 1
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(mhprobe.UserError, match="No space left"):
        save_weights(model, file, DESCRIPTION)
    with pytest.raises(mhprobe.UserError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), checkpoint)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before
    monkeypatch.undo()
    assert load_checkpoint(checkpoint)["mhprobe"] == DESCRIPTION


def test_a_disk_that_fills_while_torch_writes_is_said_in_a_line(model, checkpoint, monkeypatch):
    def full(*_args, **_kwargs):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    before = checkpoint.read_bytes()
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(mhprobe.UserError, match="could not write"):
        AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), checkpoint)
    assert checkpoint.read_bytes() == before and len(list(checkpoint.parent.iterdir())) == 1


def test_a_disk_that_is_really_full_is_called_so(model, tmp_path):
    """torch's writer says "unexpected pos 64 vs 0"."""
    path = tmp_path / "last.ckpt"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(mhprobe.UserError, match="File too large") as error:
            AtomicCheckpointIO().save_checkpoint(checkpoint_of(model), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
