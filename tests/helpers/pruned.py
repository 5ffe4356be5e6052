"""Small networks with a description, and what pruning them leaves, for several test files."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mhprobe
from mhprobe.backbones import build, layout_of
from mhprobe.data.batch import Batch
from mhprobe.pruning.rounds import Judge, Selection
from mhprobe.surgery.costs import costs
from mhprobe.surgery.speed import speed_table
from mhprobe.weights.checkpoint import save_weights
from mhprobe.weights.description import pruned_description
from models import images_for, make_loud, tiny_vit

BACKBONES = {
    "vit": {
        **{
            "name": "vit_tiny_patch16_224",
            "img_size": 16,
            "patch_size": 4,
            "embed_dim": 24,
            "depth": 2,
        },
        **{
            "num_heads": 3,
            "qk_norm": True,
            "reg_tokens": 2,
            "fused_attn": False,
            "pretrained": False,
        },
    },
    "swin": {
        **{
            "name": "swin_tiny_patch4_window7_224",
            "img_size": 18,
            "patch_size": 2,
            "window_size": 4,
        },
        **{"embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]},
    },
}
REMOVED = {"vit": [1, 3, 4], "swin": [0, 3, 8, 9]}
EMPTIED = {"vit": [0, 1, 2, 4], "swin": [0, 1, 2, 7, 8, 9]}
COUNT = 48  # of the images that ``shown`` gives


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
    kept = layout.kept(layout.mask(removed))
    pruned = mhprobe.prune_heads(model, removed)
    save_weights(pruned, path, pruned_description(about, kept, "keep", None))
    return pruned


def logits(model, images):
    with torch.no_grad():
        return model(images)


def time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass a timing, where nothing is said of how fast a network is: six seconds less."""
    monkeypatch.setattr(
        "mhprobe.framework.run.pruning.speed_table", functools.partial(speed_table, seconds=0.0)
    )


class Data:
    """Images whose labels are what the network says, as if it had been trained on them."""

    unlabelled, batch_size = False, 20

    def __init__(self, model):
        self.sizes = dict.fromkeys(("train", "val", "test"), COUNT)
        self.images = images_for(model, COUNT, dtype=next(model.parameters()).dtype)
        self.labels = logits(model, self.images).argmax(1)
        self.splits = dict.fromkeys(self.sizes, SimpleNamespace(labels=np.asarray(self.labels)))

    def images_of(self, split):
        return f"{split} {getattr(self, 'places', '')}".strip()

    def only(self, split, places):
        if len(places) == self.sizes[split]:
            return self
        part = copy.copy(self)
        part.places = torch.as_tensor(places)
        part.images, part.labels = self.images[part.places], self.labels[part.places]
        return part

    def batches(self, split, device, images=None):
        every = torch.arange(len(self.images))
        for index in (every if images is None else images).split(self.batch_size):
            yield Batch(
                self.images[index],
                self.labels[index],
                index,
                torch.ones(len(index), dtype=torch.bool),
            )


def shown(units, model=None):
    """A loud network with gates, its layout, and the judge of a pruning that was shown it."""
    model = (tiny_vit(depth=3) if model is None else model).eval()
    make_loud(model, 0.3)
    layout = mhprobe.attach(model, units=units).layout
    judge = Judge(Selection(Data(model), torch.device("cpu")))
    judge.show(model)
    return model, layout, judge


def spared(model, layout, image, unit="flops"):
    """(A,) share of the network's FLOPs (or parameters) that goes with each unit alone."""
    return 1 - costs(model, layout, image, {unit})[unit](
        torch.eye(layout.num_heads, dtype=torch.bool)
    )
