"""Small networks with a description, and what pruning them leaves, for several test files."""

from __future__ import annotations

import functools

import pytest
import torch

import mhprobe
from mhprobe.backbones import build, layout_of
from mhprobe.surgery.removal import kept_heads
from mhprobe.surgery.speed import speed_table
from mhprobe.weights.checkpoint import save_weights
from mhprobe.weights.description import pruned_description

BACKBONES = {
    "vit": {
        **{"name": "vit_tiny_patch16_224", "img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2},
        **{"num_heads": 3, "qk_norm": True, "reg_tokens": 2, "fused_attn": False, "pretrained": False},
    },
    "swin": {
        **{"name": "swin_tiny_patch4_window7_224", "img_size": 18, "patch_size": 2, "window_size": 4},
        **{"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]},
    },
}
REMOVED = {"vit": [1, 3, 4], "swin": [0, 3, 8, 9]}
EMPTIED = {"vit": [0, 1, 2, 4], "swin": [0, 1, 2, 7, 8, 9]}


def description(kind):
    return {
        "backbone": BACKBONES[kind],
        "class_names": list("abcde"),
        "data": "letters",
        "input": {"size": [16, 16], "mean": [0.5] * 3, "std": [0.5] * 3},
    }


def network(kind, seed=0):
    torch.manual_seed(seed)
    return build(**BACKBONES[kind], num_classes=5).eval()


def save_pruned(model, removed, path, about):
    layout = layout_of(model)
    kept = kept_heads(layout, layout.mask(removed))
    pruned = mhprobe.prune_heads(model, removed)
    save_weights(pruned, path, pruned_description(about, kept, "keep", None))
    return pruned


def logits(model, images):
    with torch.no_grad():
        return model(images)


def time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass a timing, where nothing is said of how fast a network is: six seconds less."""
    monkeypatch.setattr("mhprobe.run.pruning.speed_table", functools.partial(speed_table, seconds=0.0))
