"""Classifiers of other forms in a file, and what a line advises where a file does not fit."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.backbones import build
from models import images_for

NAME = "vit_tiny_patch16_224"
SIZES = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3)


def net(**options):
    torch.manual_seed(0)
    return build(NAME, **{**SIZES, "num_classes": 5, **options}).eval()


@pytest.fixture
def model():
    return net()


@pytest.fixture
def load(tmp_path):
    def loaded(state, **options):
        torch.save(state, tmp_path / "weights.pth")
        return mhprobe.load(tmp_path / "weights.pth", **{"name": NAME, **SIZES, **options})

    return loaded


def without_head(model):
    return {key: value for key, value in model.state_dict().items() if not key.startswith("head")}


def headed(model, head):
    return {**without_head(model), **{f"head.{key}": of for key, of in head.state_dict().items()}}


def old_form(layer):
    """As ``torch.nn.utils.weight_norm`` writes it."""
    length = layer.weight.norm(dim=1, keepdim=True)
    names = {"weight_g": length, "weight_v": layer.weight, "bias": layer.bias}
    return {key: value.detach() for key, value in names.items()}


@pytest.mark.parametrize("form", ["parametrised", "old"])
def test_a_classifier_of_length_and_direction_is_read(model, load, caplog, form):
    """Once the classifier was left out, and the network gave features."""
    expected, images = net(), images_for(model, 2)
    expected.head = nn.Linear(24, 5)
    if form == "old":
        tensors = old_form(expected.head)
        tensors["weight_v"] = 3 * tensors["weight_v"]  # only its direction counts
    else:
        tensors = nn.utils.parametrizations.weight_norm(expected.head).state_dict()
    state = {**without_head(model), **{f"head.{key}": value for key, value in tensors.items()}}
    # 1e-5 is float32: the same product in another order
    torch.testing.assert_close(load(state)(images), expected(images), rtol=0, atol=1e-5)
    assert "head.weight (5, 24) is made of length and direction" in caplog.text


def test_weights_of_length_and_direction_are_read_within_blocks(model, load):
    state = model.state_dict()
    weight = state.pop("blocks.0.attn.qkv.weight")
    state["blocks.0.attn.qkv.weight_g"] = weight.norm(dim=1, keepdim=True)
    state["blocks.0.attn.qkv.weight_v"] = weight
    images = images_for(model, 2)
    torch.testing.assert_close(load(state)(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["head.1", "classifier.1", "head.2"])
def test_one_layer_in_a_sequence_is_the_classifier(model, load, caplog, name):
    head = {f"{name}.{part}": value for part, value in model.head.state_dict().items()}
    images = images_for(model, 2)
    assert torch.equal(load({**without_head(model), **head})(images), model(images))
    assert f"{name} (5, 24) is read as the classifier" in caplog.text


@pytest.mark.parametrize(
    "head",
    [
        nn.Sequential(nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 5)),
        nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 5)),
        nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 5)),
    ],
)
def test_a_classifier_of_several_layers_is_left_out_with_a_warning(model, load, caplog, head):
    assert load(headed(model, head)).num_classes == 0
    (line,) = [of for of in caplog.records if "more than one layer" in of.message]
    assert line.levelno == logging.WARNING and "features, no logits" in line.message
    caplog.clear()
    load(model.state_dict(), num_classes=0)  # negative control: this one was asked for
    assert "more than one layer" not in caplog.text


@pytest.mark.parametrize(
    ("made", "told", "options"),
    [
        ({"global_pool": "map"}, "global_pool=map", {"global_pool": "map"}),
        ({"in_chans": 4}, "give in_chans=4", {"in_chans": 4}),
        ({"depth": 1}, "give depth=1", {"depth": 1}),
        (
            {"class_token": False, "global_pool": "avg", "fc_norm": False},
            "give class_token=False",
            {"class_token": False, "global_pool": "avg", "fc_norm": False},
        ),
    ],
)
def test_options_of_the_files_network_are_told_and_load_it(load, made, told, options):
    """A line advised ``leave_out=True`` for a pooling, and the network pooled otherwise."""
    theirs = net(**made)
    with pytest.raises(mhprobe.UserError, match=told) as error:
        load(theirs.state_dict())
    assert "leave_out" not in str(error.value)
    images = torch.randn(2, made.get("in_chans", 3), 16, 16)
    torch.testing.assert_close(load(theirs.state_dict(), **options)(images), theirs(images))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_classes": -1}, "num_classes: expected a whole number"),
        ({"num_classes": "5"}, "num_classes: expected a whole number"),
        ({"pretrained": True}, "pretrained: the weights are those of the file"),
        ({"checkpoint_path": "x.pth"}, "checkpoint_path: the weights are those of the file"),
        ({"leave_out": ""}, "leave_out: expected the beginning of a name"),
        ({"leave_out": ["head", ""]}, "leave_out: expected the beginning of a name"),
    ],
)
def test_options_that_contradict_the_file_are_refused(model, load, options, told):
    with pytest.raises(mhprobe.UserError, match=told):
        load(model.state_dict(), **options)


def test_the_image_tower_of_clip_is_read_alone_and_with_its_text_tower(load):
    """Alone it lacks the prefix by which timm knows it; the line said to take the name that was given."""
    torch.manual_seed(0)
    tower = {
        "class_embedding": torch.randn(24),
        "positional_embedding": torch.randn(17, 24),
        "conv1.weight": torch.randn(24, 3, 4, 4),
        "proj": torch.randn(24, 5),
        **{
            f"ln_{where}.{part}": torch.randn(24)
            for where in ("pre", "post")
            for part in ("weight", "bias")
        },
    }
    for block in range(2):
        layers = {
            **{"ln_1": (24,), "ln_2": (24,), "attn.out_proj": (24, 24), "mlp.c_fc": (96, 24)},
            **{"mlp.c_proj": (24, 96)},
        }
        for name, shape in layers.items():
            tower[f"transformer.resblocks.{block}.{name}.weight"] = torch.randn(shape) / 5
            tower[f"transformer.resblocks.{block}.{name}.bias"] = torch.randn(shape[0])
        tower[f"transformer.resblocks.{block}.attn.in_proj_weight"] = torch.randn(72, 24) / 5
        tower[f"transformer.resblocks.{block}.attn.in_proj_bias"] = torch.randn(72)
    whole = {f"visual.{key}": value for key, value in tower.items()} | {
        "logit_scale": torch.ones(())
    }
    alone, beside = (load(state, name="vit_base_patch32_clip_224") for state in (tower, whole))
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(alone(images), beside(images)) and alone(images).std() > 0


def test_a_plain_file_is_read_without_a_word_on_its_classifier(load, caplog):
    """Negative control."""
    load(net().state_dict())
    assert "classifier" not in caplog.text
