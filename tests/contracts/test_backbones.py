"""What every backbone family promises: gates own their head's channels, and what is not supported says why."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch
from omegaconf import OmegaConf

import mhprobe
from mhprobe.backbones import families, layout_of
from models import BUILDERS, images_for

CONF = Path(__file__).parents[2] / "conf" / "backbone"

# (timm name, heads per site, sites): one of every lineage in the family
SUPPORTED = [
    ("vit_tiny_patch16_224", {3}, 12),
    ("vit_base_patch16_224.augreg_in21k", {12}, 12),
    ("vit_small_patch14_reg4_dinov2", {6}, 12),
    ("deit_tiny_distilled_patch16_224", {3}, 12),
    ("deit3_small_patch16_224", {6}, 12),
    ("vit_base_patch16_clip_224.openai", {12}, 12),
    ("vit_base_patch16_siglip_224", {12}, 12),
    ("vit_small_patch16_18x2_224", {6}, 36),
    ("vit_base_patch32_plus_256", {14}, 12),
    ("flexivit_small", {6}, 12),
    ("vit_small_resnet26d_224", {8}, 8),
    ("swin_tiny_patch4_window7_224", {3, 6, 12, 24}, 12),
    ("swin_base_patch4_window7_224.ms_in22k", {4, 8, 16, 32}, 24),
    ("swin_s3_tiny_224", {3, 6, 12, 24}, 12),
]

REFUSED = [  # (timm name, what the one line must name)
    ("swinv2_tiny_window8_256", "SwinTransformerV2"),
    ("beit_base_patch16_224", "Beit"),
    ("eva02_tiny_patch14_224", "Eva"),
    ("cait_xxs24_224", "Cait"),
    ("nest_tiny", "Nest"),
    ("xcit_nano_12_p16_224", "Xcit"),
    ("pvt_v2_b0", "PyramidVisionTransformerV2"),
    ("resnet18", "ResNet"),
    ("vit_relpos_small_patch16_224", "VisionTransformerRelPos"),
]


@pytest.mark.parametrize(("name", "heads", "sites"), SUPPORTED, ids=[row[0] for row in SUPPORTED])
def test_supported_architectures_have_their_heads_found(name, heads, sites):
    with torch.device("meta"):
        model = timm.create_model(name)
    layout = layout_of(model)
    assert {site.num_heads for site in layout.sites} == heads
    assert len(layout.sites) == sites
    assert layout.num_heads == sum(site.num_heads for site in layout.sites)


@pytest.mark.parametrize(("name", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_unsupported_architectures_are_refused_by_name(name, reason):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(mhprobe.UserError, match=reason):
        layout_of(model)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"block_fn": timm.models.vision_transformer.ParallelScalingBlock}, r"blocks\.0 is a ParallelScalingBlock"),
        ({"attn_layer": "diff"}, r"blocks\.0\.attn is a DiffAttention"),
        ({"scale_attn_norm": True}, r"blocks\.0\.attn\.norm is a LayerNorm"),
    ],
)
def test_blocks_that_mix_heads_are_refused_by_module_and_reason(kwargs, reason):
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=24, depth=1, **kwargs)
    with pytest.raises(mhprobe.UserError, match=reason):
        mhprobe.attach(model)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_without_its_rows_of_W_V_one_head_falls_silent_and_no_other(build):
    model = build()
    images = images_for(model, 2)
    layout = mhprobe.attach(model).layout
    for number, site in enumerate(layout.sites):
        for head in range(site.num_heads):
            cut = copy.deepcopy(model)
            qkv = cut.get_submodule(f"{site.name}.qkv")
            rows = slice(2 * site.channels + head * site.head_dim, 2 * site.channels + (head + 1) * site.head_dim)
            with torch.no_grad():
                qkv.weight[rows] = 0
                if qkv.bias is not None:
                    qkv.bias[rows] = 0
            before = mhprobe.record(model, images, needs=()).z[number]
            after = mhprobe.record(cut, images, needs=()).z[number]
            silent = torch.zeros(site.num_heads, dtype=torch.bool)
            silent[head] = True
            assert (after[:, :, head] == 0).all(), (site.name, head)
            assert torch.equal(after[:, :, ~silent], before[:, :, ~silent]), (site.name, head)
            assert before[:, :, head].abs().max() > 0


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
def test_a_gate_of_zero_is_a_head_without_values(build):
    """The gate and the weights agree on which head is which."""
    model = build()
    images = images_for(model, 2)
    gates = mhprobe.attach(model)
    flat = 0
    for site in gates.layout.sites:
        for head in range(site.num_heads):
            cut = copy.deepcopy(model)
            qkv = cut.get_submodule(f"{site.name}.qkv")
            rows = slice(2 * site.channels + head * site.head_dim, 2 * site.channels + (head + 1) * site.head_dim)
            with torch.no_grad():
                qkv.weight[rows] = 0
                if qkv.bias is not None:
                    qkv.bias[rows] = 0
                mask = gates.layout.mask([flat])
                with gates.masked(mask):
                    torch.testing.assert_close(model(images), cut(images))
            flat += 1


def test_every_backbone_yaml_belongs_to_a_family_and_has_a_tiny_twin():
    names = {path.stem for path in CONF.glob("*.yaml")}
    assert names
    assert names == {family.__module__.rpartition(".")[2] for family in families()}
    assert names <= set(BUILDERS)
    for path in CONF.glob("*.yaml"):
        assert timm.is_model(OmegaConf.load(path).name)
