"""A stem of convolutions makes the same tokens of the same pixels: nothing about heads is different."""

from __future__ import annotations

import json

import pytest
import timm
import torch

from mhprobe.backbones import build, layout_of
from mhprobe.errors import UserError
from mhprobe.weights.checkpoint import load_weights, save_weights
from mhprobe.weights.description import for_timm
from models import images_for

VIT = {
    "name": "vit_tiny_patch16_224",
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
}
SWIN = {
    **{"name": "swin_tiny_patch4_window7_224", "img_size": 16, "patch_size": 2, "window_size": 4},
    **{"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 3]},
}


@pytest.mark.parametrize("plain", [VIT, SWIN])
def test_heads_tokens_and_pixels_are_those_of_a_plain_projection(plain):
    model = build(**plain, conv_stem=[4, 8], num_classes=5).eval()
    assert layout_of(model) == layout_of(build(**plain, num_classes=5))
    assert model(images_for(model, 2)).shape == (2, 5)


@pytest.mark.parametrize("plain", [VIT, SWIN])
def test_the_json_rebuilds_it(plain, tmp_path):
    settings = {**plain, "pretrained": False, "conv_stem": [4, 8]}
    model = build(**settings, num_classes=5).train()
    model(images_for(model, 8))  # moves the running means: they are weights too
    path = tmp_path / "model.safetensors"
    save_weights(
        model.eval(), path, {"backbone": settings, "class_names": list("abcde"), "data": "digits"}
    )
    images = images_for(model, 3)
    torch.testing.assert_close(load_weights(path)[0](images), model(images), rtol=0, atol=0)
    assert json.loads(path.with_suffix(".json").read_text())["backbone"]["conv_stem"] == [4, 8]


@pytest.mark.parametrize(
    "stem", [[4, "weights.pt"], "weights.pt", [], [0], [1 << 20], [True], [4.0]]
)
def test_a_strangers_stem_is_refused(stem, tmp_path):
    path = tmp_path / "model.safetensors"
    settings = {**VIT, "pretrained": False, "conv_stem": stem}
    save_weights(
        torch.nn.Linear(1, 1),
        path,
        {"backbone": settings, "class_names": list("abcde"), "data": "digits"},
    )
    with pytest.raises(UserError, match="conv_stem"):
        load_weights(path)


@pytest.mark.parametrize(
    ("changes", "said"), [({"patch_size": 3, "img_size": 15}, "3 x 3"), ({"img_size": 18}, "tile")]
)
def test_patches_it_cannot_make_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        build(**{**VIT, **changes}, conv_stem=[4, 8])


def test_plain_timm_can_not_rebuild_it_as_docs_pruning_says():
    settings = {
        "name": "vit_tiny_patch16_224",
        "img_size": 16,
        "patch_size": 4,
        "embed_dim": 12,
        "depth": 1,
    }
    about = {
        "backbone": settings | {"num_heads": 3, "conv_stem": [4, 8]},
        "class_names": ["a", "b"],
    }
    with pytest.raises(TypeError, match="conv_stem"):
        timm.create_model(**for_timm(about))
    # negative control: without the stem it can
    about["backbone"].pop("conv_stem")
    assert timm.create_model(**for_timm(about)).num_classes == 2
