"""What every experiment promises: it says what to type and what to expect, composes, and runs from end to end."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class

import mhprobe.train
import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import sections
from mhprobe.framework.run.members import members
from mhprobe.framework.run.sections import CONF
from mhprobe.weights.checkpoint import load_checkpoint, load_weights
from runs import rows

COMMANDS = (Path(__file__).parents[3] / "docs/commands.md").read_text()
EXPERIMENTS = sorted(
    path.stem for path in (Path(__file__).parents[3] / "conf" / "experiment").glob("*.yaml")
)

# by the yaml in conf/backbone: two layers where the experiment has many
SMALL = {
    "vit": ["img_size=16", "patch_size=4", "embed_dim=24", "depth=2", "num_heads=3"],
    "swin": [
        *("img_size=16", "patch_size=2", "window_size=4", "embed_dim=12"),
        *("depths=[1,1]", "num_heads=[2,3]"),
    ],
}
COLUMNS = {
    "per_head": {"head", "site", "stage", "block", "index", "value"},
    "pairwise": {"head_a", "head_b", "value"},
    "pairwise_layers": {"block_a", "block_b", "value"},
    "curves": {
        "curve",
        "step",
        "heads_masked",
        "masked",
        "accuracy",
        "loss",
        "low",
        "high",
        "seed",
    },
}


def shrunk(name: str, folder: Path, cifar: Path) -> dict[str, Any]:
    """The experiment with a tiny backbone, one epoch and few images; everything else is its own."""
    plain = runs.composed("train", f"+experiment={name}", hydra=True)
    overrides = [f"++backbone.{setting}" for setting in SMALL[plain.hydra.runtime.choices.backbone]]
    overrides += ["backbone.pretrained=false", "trainer.accelerator=cpu", "trainer.max_epochs=1"]
    overrides += [
        "data.batch_size=16",
        "data.val_fraction=0.3",
        "data.limit_train=32",
        "data.limit_val=20",
        "data.limit_test=20",
    ]
    overrides += [f"out={folder}", f"cache_dir={folder / 'cache'}"]
    if "root" in plain.data:
        overrides.append(f"data.root={cifar}")
    if "train" in plain.data.get("source", {}):  # drawn one by one
        overrides += ["data.source.train=100", "data.source.test=20"]
    if "heads" in (plain.gates.penalty or {}):
        overrides.append("gates.penalty.heads=3")
    return runs.checked("train", f"+experiment={name}", *overrides)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_header_says_what_to_type_and_what_to_expect(name):
    header = re.match(r"(#.*\n)+", (CONF / "experiment" / f"{name}.yaml").read_text()).group()
    assert f"python -m mhprobe.train +experiment={name}" in header
    assert re.search(r"accuracy|docs/results\.md", header)
    assert re.search(r"CPU|GPU|hardware", header)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_composes_and_passes_the_checks(name):
    for command in sections.commands_of_conf():
        words = [f"+experiment={name}"]
        if command == "mask" and not runs.composed(command, *words).masking.curves:
            with pytest.raises(UserError, match=r"masking\.curves: expected a curve"):
                runs.checked(command, *words)
            words.append("masking=six_curves")
        assert runs.checked(command, *words).name == name, command


def test_probe_all_names_every_measure():
    assert set(runs.composed("probe", "+experiment=probe_all").measure) == set(members("measure"))


def test_the_readme_names_what_is_measured_on_damaged_images():
    (row,) = (line for line in COMMANDS.splitlines() if line.startswith("| `cifar10_corrupted`"))
    measured = runs.composed("probe", "+experiment=cifar10_corrupted").measure
    assert set(re.findall(r"`(\w+)`", row)) - {"cifar10_corrupted"} == set(measured)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages")
@pytest.mark.filterwarnings("ignore::mhprobe.measures.activation_patching.NothingToRestore")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_runs_from_end_to_end_and_leaves_what_it_promises(name, tmp_path, cifar):
    cfg = shrunk(name, tmp_path, cifar)
    folder = tmp_path / "run"
    mhprobe.train.run(cfg, folder)

    for measure, part in (cfg.measure or {}).items():
        table = rows(folder / "tables" / f"{measure}.csv")
        assert table and COLUMNS[get_class(part["_target_"]).kind] <= set(table[0]), measure
    curves = cfg.masking.curves
    if curves:
        table = rows(folder / "tables" / "masking_curves.csv")
        assert COLUMNS["curves"] <= set(table[0])
        assert {row["curve"] for row in table} == set(curves)
        unmasked = {
            row["accuracy"] for row in table if row["step"] == "0" and row["split"] == "test"
        }
    for figure in [*(cfg.measure or {}), *(["masking_curves"] if curves else [])]:
        assert (folder / "figures" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "figures" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")

    if "settling" in cfg.callback:
        assert {row["share"] for row in rows(folder / "tables" / "settling.csv")} >= {
            "0.0",
            "0.5",
            "0.9",
        }
        assert (folder / "figures" / "settling.png").read_bytes().startswith(b"\x89PNG")

    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["test/images"] == 20 and math.isfinite(metrics["test/loss"])
    assert not curves or unmasked == {
        repr(metrics["test/accuracy"])
    }  # one evaluation, two ways in: the same to the image

    assert load_checkpoint(folder / "checkpoints" / "last.ckpt")["epoch"] == 0
    _, from_best = load_weights(folder / "checkpoints" / "best.ckpt")
    _, from_pair = load_weights(folder / "model.safetensors")
    assert from_best["backbone"] == from_pair["backbone"]
    assert not list(folder.rglob("*.tmp"))
