"""A network is found by what a user calls it: a run, a file, a folder of others' making, a name of timm's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from mhprobe.backbones import input_spec
from mhprobe.errors import UserError
from mhprobe.pages.looking import network as module
from mhprobe.pages.looking.network import chosen
from models import tiny_vit


def test_a_name_of_timms_with_weights_of_any_training(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0).eval()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    found = chosen("vit_tiny_patch16_224", tmp_path / "w.safetensors", size=32)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(found.model(images), model(images)) and found.spec["size"] == (32, 32)
    untrained = found.twin()
    assert not torch.equal(untrained(images), model(images))


def test_images_are_made_smaller_where_their_own_size_would_take_minutes(monkeypatch):
    monkeypatch.setattr(module, "MOST", 1_000_000)
    found = chosen("vit_tiny_patch16_224", "random", None)
    assert found.spec["size"] == (192, 192)
    assert any("Images are 192 pixels wide and not 224" in note for note in found.notes)
    assert any("untrained" in note for note in found.notes)
    monkeypatch.setattr(module, "MOST", 10_000_000)
    assert chosen("vit_tiny_patch16_224", "random").notes == (
        "It is untrained: its weights are random.",
    )


def test_a_folder_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
    model = transformers.Dinov2Model(
        transformers.Dinov2Config(image_size=28, patch_size=14, **sizes)
    ).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3]}))
    found = chosen(tmp_path)
    images = torch.randn(1, 3, 28, 28)
    assert torch.equal(found.model(images).last_hidden_state, model(images).last_hidden_state)
    assert found.spec["size"] == (28, 28) and found.spec["mean"] == (0.1, 0.2, 0.3)
    with pytest.raises(UserError, match="untrained"):
        found.twin()


def test_what_was_pushed_to_the_hub_is_found_there(tmp_path, monkeypatch):
    weights = Path(__file__).parents[2] / "weights" / "cifar10_vit_stem"
    files = {
        "model.json": weights.with_suffix(".json"),
        "model.safetensors": weights.with_suffix(".safetensors"),
    }
    for name, file in files.items():
        (tmp_path / name).symlink_to(file)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda repo, file, revision: str(tmp_path / file)
    )
    found = chosen("hf-hub:owner/name")
    assert (
        found.name == "hf-hub:owner/name"
        and found.spec["size"] == (32, 32)
        and found.layout.num_heads == 72
    )
    assert found.twin() is not None


def test_a_network_of_a_notebook_is_taken_as_it_is():
    model = tiny_vit()
    found = chosen(model, None, None)
    assert found.model is model and found.spec == input_spec(model)
    with pytest.raises(UserError):  # its sizes are no default's: nothing says how to rebuild it
        chosen(model).twin()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("vit_tiny_patch16_225", None, None), "no model 'vit_tiny_patch16_225'"),
        (("vit_tiny_patch16_224", "nowhere.safetensors", None), "no file nowhere.safetensors"),
        ((3, None, None), "expected a network or its name"),
        (("{here}", "random", None), "leave them out"),
        (("{here}", None, None), "holds no"),
    ],
)
def test_what_is_no_network_is_answered_in_a_line(arguments, says, tmp_path):
    name, weights, size = arguments
    with pytest.raises(UserError, match=says):
        chosen(str(tmp_path) if name == "{here}" else name, weights, size)
