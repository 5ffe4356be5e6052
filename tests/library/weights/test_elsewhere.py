"""Weights of the Hub, and folders and files of other libraries: fetched, or called what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf

import mhprobe
from mhprobe.backbones import build
from mhprobe.backbones.parts.timm_models import registered
from mhprobe.errors import UserError
from mhprobe.framework.run import schema
from mhprobe.pages.looking.network import network_to_look_at
from mhprobe.pages.shrinking.recipe import open_network
from mhprobe.weights.checkpoint import load_weights
from mhprobe.weights.hub import find_weights


def test_a_command_fetches_weights_of_the_hub_as_load_does(monkeypatch):
    asked: list[str] = []

    def fetched(path, key):
        asked.append(path)
        return Path("cache/model.safetensors")

    monkeypatch.setattr(schema, "find_weights", fetched)
    plain = {"weights": "hf-hub:me/net@v2", "optim": {"teacher": "hf-hub:me/teacher"}}
    schema._take_files_of_folders(plain)
    assert asked == ["hf-hub:me/net@v2", "hf-hub:me/teacher"]
    assert plain["weights"] == plain["optim"]["teacher"] == "cache/model.safetensors"
    local = {"weights": "model.safetensors"}
    schema._take_files_of_folders(local)
    assert local == {"weights": "model.safetensors"} and len(asked) == 2


CONFIGS = {
    "timm": ({"architecture": "vit_tiny_patch16_224"}, r"is a model of timm: give the backbone name=local-dir:"),
    "transformers": ({"model_type": "dinov2"}, r"is a model of transformers: mhprobe look takes the folder"),
    "none": (None, r"give the backbone a name=<timm's name> and checkpoint="),
}  # fmt: skip


@pytest.mark.parametrize("library", CONFIGS)
def test_weights_in_a_folder_of_another_library_are_called_what_they_are(library, tmp_path):
    config, says = CONFIGS[library]
    (tmp_path / "model.safetensors").write_bytes(b"\x00tensors")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=says):
        load_weights(find_weights(tmp_path))


def test_a_folder_of_timm_without_our_names_says_how_it_is_given(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x00tensors")
    with pytest.raises(UserError, match=r"is a model of timm: give the backbone name=local-dir:"):
        find_weights(tmp_path)


def saved_by_transformers(folder):
    """A folder with a tiny classifier of transformers."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=2, **sizes)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    return folder


def test_a_folder_of_transformers_is_called_that_wherever_it_is_given(tmp_path):
    folder = saved_by_transformers(tmp_path)
    ways = {
        "weights": lambda: load_weights(find_weights(folder)),
        "load": lambda: mhprobe.load(folder),
        "weights of shrink": lambda: open_network(str(folder)),
        "local-dir": lambda: build(f"local-dir:{folder}", pretrained=True),
        "its settings": lambda: registered({"name": f"local-dir:{folder}"}),
        "name": lambda: build(str(folder)),
    }
    for way, read in ways.items():
        with pytest.raises(UserError) as error:
            read()
        assert "is a model of transformers: mhprobe look takes the folder" in str(error.value), way
        assert "missing" not in str(error.value) and len(str(error.value)) < 600, way
    network_to_look_at(folder)  # the control


def test_a_folder_of_timm_is_written_for_shrink_as_the_line_says(tmp_path):
    sizes = dict(img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes).eval()
    folder, file = tmp_path / "timm", tmp_path / "model.safetensors"
    save_for_hf(model, str(folder), model_args=sizes, safe_serialization=True)
    for read in (mhprobe.load, lambda path: open_network(str(path)), lambda path: build(str(path))):
        with pytest.raises(UserError, match=r"is a model of timm: .*mhprobe.save") as error:
            read(folder)
        assert "missing" not in str(error.value)
    mhprobe.save(timm.create_model(f"local-dir:{folder}", pretrained=True), file)
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(open_network(str(file)).model(images), model(images))


@pytest.mark.parametrize("name", ["epoch=3.ckpt", "last.ckpt"])
def test_a_checkpoint_of_another_training_says_that_it_needs_a_name(name, tmp_path):
    torch.save({"state_dict": {"net.weight": torch.ones(1)}, "epoch": 3}, tmp_path / name)
    with pytest.raises(
        UserError, match=r"does not say which backbone it is\. .*name=<timm's name>"
    ):
        mhprobe.load(tmp_path / name)


def test_look_says_how_weights_of_another_training_are_given(tmp_path):
    torch.save({"net.weight": torch.ones(1)}, tmp_path / "net.pth")
    with pytest.raises(
        UserError, match=r"need the network's name: look <name of timm> .*--weights"
    ):
        network_to_look_at(tmp_path / "net.pth")
    for size, says in ((20_000, "at most 4096 pixels"), (0, "at least 1"), (2.5, "whole number")):
        with pytest.raises(UserError, match=says):
            network_to_look_at("vit_tiny_patch16_224", "random", size)
