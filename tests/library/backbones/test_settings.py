"""Sizes and switches of a backbone are options of the command line like any other."""

from __future__ import annotations

import inspect

import pytest
import timm
import torch
from omegaconf import OmegaConf

import runs
from mhprobe.backbones import build
from mhprobe.framework.run.networks import OF_FILE
from mhprobe.framework.run.sections import CONF
from mhprobe.weights.description import Backbone, portable

BACKBONES = sorted(path.stem for path in (CONF / "backbone").glob("*.yaml"))


@pytest.mark.parametrize("backbone", BACKBONES)
def test_each_size_that_a_yaml_lists_is_one_that_its_network_takes(backbone):
    sizes = OmegaConf.load(CONF / "backbone" / f"{backbone}.yaml")
    read_beside = {"num_classes", *OF_FILE}  # by networks.py, not by the network's class
    listed = {str(key) for key, value in sizes.items() if value is None} - read_beside
    with torch.device("meta"):
        taken = inspect.signature(type(timm.create_model(sizes.name)).__init__).parameters
    assert "img_size" in listed
    assert listed <= {*taken, *Backbone.model_fields}
    assert "wings" not in {*taken, *Backbone.model_fields}  # or any word would pass


def test_a_size_needs_no_plus_and_one_that_is_left_out_is_the_models_own(tmp_path):
    sizes = ["backbone.img_size=32", "backbone.drop_path_rate=0.1", "backbone.conv_stem=null"]
    part = runs.config("train", tmp_path, *sizes).backbone
    assert (part["img_size"], part["drop_path_rate"], part["patch_drop_rate"]) == (32, 0.1, None)
    given = {
        key: value
        for key, value in part.items()
        if key not in ("_target_", "checkpoint", "num_classes")
    }
    with torch.device("meta"):
        model = build(**given)
    assert model.patch_embed.img_size == (32, 32)
    assert isinstance(model.patch_drop, torch.nn.Identity)
    assert {"img_size", "name"} <= portable(given).keys()
    # a file of weights holds what was chosen, nothing else
    assert not {"patch_drop_rate", "conv_stem"} & portable(given).keys()
