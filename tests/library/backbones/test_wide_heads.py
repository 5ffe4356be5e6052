"""Heads as wide as a user asks for: built, gated, removed and loaded like any others."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from timm.layers import Attention

import mhprobe
from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_weights, save_weights

VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3}
NAME = "vit_tiny_patch16_224"


def wide(width=24):
    torch.manual_seed(0)
    return build(NAME, num_classes=5, attn_head_dim=width, **VIT).eval()


def test_every_head_is_as_wide_as_the_input_of_its_block():
    model = wide(24)
    sites = mhprobe.attach(model).layout.sites
    assert [(site.num_heads, site.head_dim, site.channels) for site in sites] == [(3, 24, 72)] * 2
    assert all(type(block.attn) is Attention for block in model.blocks)
    assert [block.attn.qkv.weight.shape for block in model.blocks] == [(3 * 72, 24)] * 2
    # as a ViT of three times the width has it, and not the default
    assert (
        model.blocks[0].attn.scale
        == 24**-0.5
        != timm.create_model(NAME, **VIT).blocks[0].attn.scale
    )


def test_a_width_of_embed_dim_over_heads_is_timms_own_network():
    plain = timm.create_model(NAME, num_classes=5, **VIT).eval()
    same = wide(8)
    same.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(same(images), plain(images))


def test_masked_wide_heads_equal_removed_ones():
    model = wide().double()
    gates, images = mhprobe.attach(model), torch.rand(4, 3, 16, 16, dtype=torch.float64)
    mask = gates.layout.mask([0, 4, 5])
    with gates.masked(mask):
        masked = model(images)
    assert (masked - model(images)).abs().max() > 1e-6
    pruned = mhprobe.prune_heads(model, mask)
    assert [block.attn.proj.in_features for block in pruned.blocks] == [48, 24]
    torch.testing.assert_close(pruned(images), masked, rtol=1e-10, atol=1e-12)


def test_wide_heads_are_saved_and_loaded(tmp_path):
    model = wide()
    settings = {"name": NAME, "pretrained": False, "attn_head_dim": 24, **VIT}
    path = tmp_path / "wide.safetensors"
    save_weights(
        model, path, {"backbone": settings, "class_names": list("abcde"), "data": "digits"}
    )
    assert json.loads(path.with_suffix(".json").read_text())["backbone"]["attn_head_dim"] == 24
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(load_weights(path)[0](images), model(images))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "swin_tiny_patch4_window7_224",
            r"attn_head_dim: expected a VisionTransformer .* got swin_tiny",
        ),
        ("beit_base_patch16_224", r"attn_head_dim: expected a VisionTransformer .* got beit_base"),
    ],
)
def test_another_family_refuses_a_width(name, told):
    with pytest.raises(UserError, match=told):
        build(name, attn_head_dim=24)


def test_a_head_of_no_width_is_refused():
    with pytest.raises(UserError, match=r"attn_head_dim: expected at least 1, got 0"):
        wide(0)
