"""The command line answers at once where it can, and a user's mistake in one line with exit code 2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import runs
from mhprobe.backbones import build
from mhprobe.run.cli import CONF
from mhprobe.weights.checkpoint import save_weights

PROBE = ("probe", *(part for part in runs.TINY if not part.startswith("data.limit_test")), "data.limit_test=3")
TRAIN = ("train", *runs.TINY)  # so that a mistake nobody sees costs seconds

# command -> what its one line must name
MISTAKES = {
    (*TRAIN, "backbone=resnet"): ("resnet", "vit", "swin"),
    ("train", "+experiment=nothing"): ("nothing", "digits_vit", "cifar10_swin"),
    (*TRAIN, "logger=tensorbord"): ("tensorbord", "csv", "wandb"),
    (*TRAIN, "measure=[nothing]"): ("nothing", "svcca", "gate_importance"),
    (*TRAIN, "trainer.max_epoch=3"): ("trainer.max_epoch", "max_epochs"),
    (*TRAIN, "optim.lrr=1"): ("optim.lrr", "did you mean lr", "weight_decay"),
    (*TRAIN, "sed=1"): ("'sed'", "did you mean seed"),
    (*TRAIN, "data.batchsize=3"): ("data.batchsize", "batch_size"),
    (*TRAIN, "+optim.momentum=1"): ("optim.momentum",),
    (*TRAIN, "optim.lr=fast"): ("optim.lr", "fast"),
    (*TRAIN, "optim.lr=-1"): ("optim.lr", "-1"),
    (*TRAIN, "seed=1.5"): ("seed", "1.5"),
    (*TRAIN, "masking.select_on=train"): ("masking.select_on", "validation", "test"),
    (*TRAIN, "masking.step=1", "masking.steps=2"): ("masking", "step", "steps"),
    (*TRAIN, "optim.lr"): ("optim.lr",),
    (*TRAIN, "backbone.depths=[1,2"): ("backbone.depths=[1,2",),
    (*TRAIN, "optim=3"): ("optim",),
    (*TRAIN, "out=file/below"): ("file", "out=<folder>"),
    (*TRAIN, "trainer.devices=many"): ("trainer.devices", "many"),
    (*TRAIN, "trainer.accelerator=abacus"): ("trainer", "abacus", "cpu"),
    (*TRAIN, "+trainer.wings=2"): ("trainer", "wings"),
    (*TRAIN, "+data.wings=2"): ("data", "wings"),
    (*TRAIN, "data.batch_size=0"): ("data.batch_size", "0"),
    (*TRAIN, "data=cifar10", "data.root=nowhere.tar"): ("data.root", "nowhere.tar"),
    (*TRAIN, "data=image_folder"): ("data.root",),
    (*TRAIN, "backbone.name=vit_tiniest"): ("backbone.name", "vit_tiniest", "vit_"),
    ("probe", "backbone.name=resnet18"): ("ResNet", "supported"),
    (*TRAIN, "+backbone.wings=2"): ("backbone", "wings"),
    (*TRAIN, "backbone.embed_dim=25"): ("backbone", "vit_tiny_patch16_224"),
    (*TRAIN, "measure.svcca.pairs=friends"): ("svcca", "friends", "layer"),
    (*TRAIN, "+measure.svcca.wings=2"): ("measure.svcca", "wings"),
    (*TRAIN, "masking.curves.random.units=limb"): ("limb", "index", "layer"),
    (*TRAIN, "masking.curves.random.order.repeats=0"): ("repeats", "0"),
    (*TRAIN, "+masking.curves.random.wings=2"): ("masking.curves.random", "wings"),
    (*TRAIN, "masking.curves.layer_max2.exclude_layers=[7]"): ("exclude_layers", "7"),
    (*TRAIN, "out=empty", "ckpt_path=last"): ("ckpt_path=last", "empty"),
    (*TRAIN, "ckpt_path=nowhere.ckpt"): ("ckpt_path", "nowhere.ckpt"),
    (*TRAIN, "ckpt_path=https://example.org/a.ckpt"): ("ckpt_path", "remote"),
    (*TRAIN, "ckpt_path=file"): ("checkpoint", "file"),
    ("probe", "weights=nowhere.safetensors"): ("weights", "nowhere.safetensors"),
    ("mask", "weights=file"): ("weights", "file"),
    # what a measure cannot work with
    (*PROBE, "+backbone.class_token=false", "+backbone.global_pool=avg", "measure=[token_kinds]",
     "measure.token_kinds.value=cls"): ("token_kinds", "value=cls", "class token", "neighbours"),
    (*PROBE, "measure=[object_attention]"): ("object_attention", "no object masks", "data=scenes", "data=pets"),
    (*PROBE, "measure=[rarity]", "data.limit_val=10", "measure.rarity.codes=4000"):
        ("rarity", "patches for 4000 codes", "measure.rarity.codes="),
    (*PROBE, "backbone.num_heads=1", "measure=[svcca]", "data.limit_test=1"):
        ("svcca", "n = 17 rows", "d = 24 channels", "Use more images"),
    (*PROBE, "+backbone.attn_layer=diff", "measure=[entropy]"): ("blocks.0.attn", "DiffAttention"),
    ("probe", "weights=nan.safetensors", "data.limit_test=3", "trainer.accelerator=cpu", "measure=[gate_importance]"):
        ("blocks.1.attn", "NaN", "image 0"),
}  # fmt: skip


@pytest.fixture(scope="module")
def replies(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("mistakes")
    (cwd / "file").write_text("a file, no folder and no checkpoint")
    settings = {"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "depth": 2, "embed_dim": 24}
    broken = build(**settings, num_heads=3, num_classes=10)
    torch.nn.init.constant_(broken.blocks[1].attn.qkv.weight, torch.nan)
    description = {"backbone": {**settings, "num_heads": 3}, "class_names": list("0123456789"), "data": "digits"}
    save_weights(broken, cwd / "nan.safetensors", description)
    return dict(
        zip(MISTAKES, runs.answers([runs.Command(task, overrides) for task, *overrides in MISTAKES], cwd), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", MISTAKES, ids=[" ".join((c[0], *c[1:][-1:])) for c in MISTAKES])
def test_a_mistake_gets_one_line_that_names_it_and_the_choices(replies, command):
    line = replies[command].answer
    for word in MISTAKES[command]:
        assert word in line
    assert len(line) < 600


@pytest.mark.slow
def test_without_a_mistake_the_same_door_opens(tmp_path):
    """Negative control: the forked command line above also succeeds where nothing is wrong."""
    tiny = [part for part in runs.TINY if not part.startswith("trainer.max_epochs")]
    [result] = runs.answers([runs.Command("probe", [*tiny, "measure=[]"])], tmp_path)
    assert result.code == 0, result.err
    assert "of 101 images" in result.out


@pytest.mark.parametrize("flags", [["--help"], ["--cfg", "job"], ["+experiment=nothing"]], ids=" ".join)
def test_answers_that_need_no_network_import_none(tmp_path, flags):
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=open('modules', 'w')));"
        "sys.argv[0] = 'mhprobe'; import runpy; runpy.run_module('mhprobe.train', run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", code, *flags], cwd=tmp_path, env=runs.environment(), capture_output=True)
    loaded = set((tmp_path / "modules").read_text().split())
    assert "hydra" in loaded  # it did run
    assert not loaded & {"torch", "timm", "lightning", "matplotlib", "wandb", "sklearn", "pydantic"}


def test_help_names_every_group_option_and_command(tmp_path):
    result = runs.run("train", "--help", cwd=tmp_path)
    assert result.code == 0 and not result.err
    for path in CONF.glob("*/*.yaml"):
        assert re.search(rf"^{path.parent.name}: .*\b{path.stem}\b", result.out, re.M), path
    for task in ("train", "probe", "maps", "mask", "prune", "studies.voita", "studies.causal"):
        assert f"mhprobe.{task}" in result.out
    ours = [line for line in result.out.splitlines() if not re.match(r"\w+: ", line)]  # Hydra lists a group on one line
    assert max(map(len, ours)) <= 120
    assert not list(tmp_path.iterdir())  # asking leaves no folder


def test_cfg_job_prints_the_composed_configuration(tmp_path):
    result = runs.run("mask", "+experiment=digits_vit", "optim.lr=0.5", "--cfg", "job", cwd=tmp_path)
    assert result.code == 0 and not result.err
    cfg = OmegaConf.create(result.out)
    assert cfg.name == "digits_vit" and cfg.optim.lr == 0.5 and cfg.backbone.depth == 4
    assert "hydra" not in cfg
    assert not list(Path(tmp_path).iterdir())
