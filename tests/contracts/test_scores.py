"""Every score of mhprobe.scoring is chosen from the command line by its yaml in conf/score, of mask and of prune."""

from __future__ import annotations

import json

import hydra
import pytest
import torch
from omegaconf import OmegaConf

import mhprobe.mask
import mhprobe.probe
import mhprobe.prune
import mhprobe.train
import runs
from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.io.files import write_all
from mhprobe.run.sections import CONF
from mhprobe.scoring.score import Score, known_scores, score_for
from mhprobe.weights.checkpoint import weights_files

SCORES = {path.stem: OmegaConf.load(path) for path in sorted((CONF / "score").glob("*.yaml")) if path.stem != "auto"}
FEATURES = "backbone.num_classes=0"
SMALL = ("masking=none", "+masking.curves.c.units=head", "masking.step=null", "masking.steps=2", "masking.join=null")
ORDER = "+masking.curves.c.order._target_=mhprobe.masking.fisher.Fisher"


def test_every_score_has_a_yaml_of_its_name():
    made = {name: hydra.utils.instantiate(yaml).func for name, yaml in SCORES.items()}
    assert made == known_scores() and all(issubclass(score, Score) for score in made.values())


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    """A network of 6 heads that has learned nothing, in a file."""
    settings = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 3}
    torch.manual_seed(0)
    model = build("vit_tiny_patch16_224", num_classes=10, **settings)
    for number, parameter in enumerate(model.parameters()):
        torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(number))
    about = {
        "backbone": {"name": "vit_tiny_patch16_224", **settings},
        "class_names": [str(digit) for digit in range(10)],
        "data": "digits",
    }
    file = tmp_path_factory.mktemp("scores") / "model.safetensors"
    write_all(weights_files(model, file, about))
    return f"weights={file}"


@pytest.mark.parametrize("name", SCORES)
def test_a_score_that_makes_no_sense_is_refused_in_a_line(name):
    of = known_scores()[name]
    if not of.of_features:
        with pytest.raises(UserError, match=f"score={name}: the model gives features, no logits; expected one of cos"):
            score_for(of, "score", labelled=True, features=True)
    if of.labelled:
        with pytest.raises(UserError, match=f"score={name}: needs labels, and the images have none"):
            score_for(of, "score", labelled=False, features=of.of_features)
    assert score_for(name, "score", labelled=True, features=of.of_features) is of


# the others differ in their numbers alone, which test_unlabelled.py has
@pytest.mark.parametrize(("name", "features"), [("kl", False), ("cosine", True)])
def test_a_curve_from_the_command_line_is_in_the_score_that_it_names(name, features, weights, tmp_path):
    of = known_scores()[name]
    overrides = [weights, f"score={name}", *SMALL, ORDER, "data.limit_test=40", *([FEATURES] if features else [])]
    mhprobe.mask.run(runs.config("mask", tmp_path, *overrides), tmp_path / "run")
    rows = runs.rows(tmp_path / "run" / "tables" / "masking_curves.csv")
    assert {row["score"] for row in rows} == {name}
    assert {row["of"] for row in runs.rows(tmp_path / "run" / "tables" / "masking_totals.csv")} == {of.scored.right}
    first, *_, last = (row for row in rows if row["split"] == "test")
    assert float(first["accuracy"]) == 1  # the unmasked model agrees with itself
    assert float(last["loss"]) != pytest.approx(float(first["loss"]), abs=1e-6)
    drawn = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert ("masking_distances" in drawn) == bool(of.scored.lost)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert ("test/accuracy" in metrics) != features  # labels say nothing about features


@pytest.mark.parametrize(("name", "features"), [("kl", False), ("knn", True)])
def test_heads_go_by_the_score_and_the_file_gives_what_it_said(name, features, weights, tmp_path):
    overrides = [weights, f"score={name}", *([FEATURES] if features else []), "data.limit_test=40", "prune.images=30"]
    chosen = ["prune=order", "prune/order=keep_best", "prune.remove=2"]
    mhprobe.prune.run(runs.config("prune", tmp_path, *overrides, *chosen), tmp_path / "run")
    dense, *_, pruned = runs.rows(tmp_path / "run" / "tables" / "pruning.csv")
    assert (dense["score"], pruned["score"], pruned["heads"]) == (name, name, "4")
    made = json.loads((tmp_path / "run" / "pruned.json").read_text())["made"]
    metric = known_scores()[name].scored.metric
    assert made[f"test/{metric}"] == float(pruned["accuracy"]) and "test/accuracy" not in made
    small = mhprobe.load(tmp_path / "run" / "pruned.safetensors")
    assert small(torch.zeros(1, 3, 8, 8)).shape == (1, 24 if features else 10)


def test_features_are_probed_by_their_norm(weights, tmp_path):
    cfg = runs.config("probe", tmp_path, weights, FEATURES, "measure=[gate_importance,entropy,ablation_delta]")
    with pytest.raises(UserError, match="the batch has no labels"):  # said at the end
        mhprobe.probe.run(cfg, tmp_path / "run")
    tables = tmp_path / "run" / "tables"
    importance = [float(row["value"]) for row in runs.rows(tables / "gate_importance.csv")]
    assert min(importance) > 0 and (tables / "entropy.csv").exists()
    # negative control: of the classifier's loss it is another number
    mhprobe.probe.run(runs.config("probe", tmp_path, weights, "measure=[gate_importance]"), tmp_path / "whole")
    loss = [float(r["value"]) for r in runs.rows(tmp_path / "whole" / "tables" / "gate_importance.csv")]
    assert importance != pytest.approx(loss, rel=0.1)


def test_what_has_no_classifier_is_not_trained(tmp_path, weights):
    with pytest.raises(UserError, match=r"backbone\.num_classes: 0 leaves the classifier out, and training needs one"):
        mhprobe.train.run(runs.config("train", tmp_path, FEATURES), tmp_path / "run")
    with pytest.raises(UserError, match=r"backbone\.num_classes: the data says how many .* got 7"):
        mhprobe.mask.run(runs.config("mask", tmp_path, "backbone.num_classes=7"), tmp_path / "run")
    with pytest.raises(UserError, match=r"backbone\.num_classes: the data says how many .* got 7"):
        mhprobe.mask.run(runs.config("mask", tmp_path, "backbone.num_classes=7", weights), tmp_path / "run")
