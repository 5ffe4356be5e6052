"""Every score of mhprobe.scoring is chosen from the command line by the name of its file, of mask and of prune."""

from __future__ import annotations

import json

import hydra
import pytest
import torch
from torch.overrides import TorchFunctionMode

import mhprobe.maps.__main__
import mhprobe.mask
import mhprobe.probe
import mhprobe.prune
import mhprobe.study
import mhprobe.train
import runs
from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.framework.run.members import members
from mhprobe.io.files import write_all
from mhprobe.maps.faithfulness import Faithfulness
from mhprobe.scoring.base import Score, known_scores, score_for
from mhprobe.weights.checkpoint import weights_files
from models import make_loud

SCORES = members("score")
FEATURES = "backbone.num_classes=0"
SIZE = {"img_size": 8, "patch_size": 2, "embed_dim": 24, "depth": 2, "num_heads": 3}
SMALL = (
    "masking=none",
    "+masking.curves.c.units=head",
    "masking.step=null",
    "masking.steps=2",
    "masking.join=null",
)
ORDER = "+masking.curves.c.order._target_=mhprobe.masking.fisher.Fisher"


def test_every_score_is_an_option_of_its_name():
    made = {name: hydra.utils.instantiate(part).func for name, part in SCORES.items()}
    assert made == known_scores() and all(issubclass(score, Score) for score in made.values())


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    """A network of 6 heads that has learned nothing, in a file."""
    torch.manual_seed(0)
    model = build("vit_tiny_patch16_224", num_classes=10, **SIZE)
    make_loud(model, 0.2)
    about = {
        "backbone": {"name": "vit_tiny_patch16_224", **SIZE},
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
        with pytest.raises(
            UserError,
            match=f"score={name}: the model gives features, no logits; expected one of cos",
        ):
            score_for(of, "score", labelled=True, features=True, images=6)
    if of.labelled:
        with pytest.raises(
            UserError, match=f"score={name}: needs labels, and the images have none"
        ):
            score_for(of, "score", labelled=False, features=of.of_features, images=6)
    assert score_for(name, "score", labelled=True, features=of.of_features, images=6, bank=21) is of


class _Largest(TorchFunctionMode):
    """How many numbers the largest tensor has that was made."""

    numbers = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@pytest.mark.parametrize("name", SCORES)
def test_judging_many_masks_takes_the_room_of_one(name):
    masks, batch, images = 30, 16, 500
    score = known_scores()[name](torch.randn(images, 8), torch.arange(images) % 3)
    with _Largest() as seen:
        right, loss = score(
            torch.randn(masks, batch, 8), torch.arange(batch), torch.zeros(batch, dtype=torch.long)
        )
    assert right.shape == loss.shape == (masks, batch) and right.dtype == torch.bool
    assert (
        seen.numbers <= max(masks * 8, images) * batch
    )  # outputs, or one mask's cosines; not both at once


# the others differ in their numbers alone, which test_unlabelled.py has
@pytest.mark.parametrize(("name", "features"), [("kl", False), ("cosine", True)])
def test_a_curve_from_the_command_line_is_in_the_score_that_it_names(
    name, features, weights, tmp_path
):
    of = known_scores()[name]
    overrides = [
        weights,
        f"score={name}",
        *SMALL,
        ORDER,
        "data.limit_test=40",
        *([FEATURES] if features else []),
    ]
    mhprobe.mask.run(runs.config("mask", tmp_path, *overrides), tmp_path / "run")
    rows = runs.rows(tmp_path / "run" / "tables" / "masking_curves.csv")
    assert {row["score"] for row in rows} == {name}
    assert {row["of"] for row in runs.rows(tmp_path / "run" / "tables" / "masking_totals.csv")} == {
        of.scored.right
    }
    first, *_, last = (row for row in rows if row["split"] == "test")
    assert float(first["accuracy"]) == 1  # the unmasked model agrees with itself
    assert float(last["loss"]) != pytest.approx(float(first["loss"]), abs=1e-6)
    drawn = {path.stem for path in (tmp_path / "run" / "figures").iterdir()}
    assert ("masking_distances" in drawn) == bool(of.scored.lost)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert ("test/accuracy" in metrics) != features  # labels say nothing about features


@pytest.mark.parametrize(("name", "features"), [("kl", False), ("knn", True), ("knn_train", True)])
def test_heads_go_by_the_score_and_the_file_gives_what_it_said(name, features, weights, tmp_path):
    overrides = [
        weights,
        f"score={name}",
        *([FEATURES] if features else []),
        "data.limit_test=40",
        "prune.images=30",
    ]
    overrides += ["data.limit_train=40"] if known_scores()[name].banked else []
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
    unfit = "attribution_patching,lrp_relevance"  # which ask for what features have not got
    cfg = runs.config(
        "probe",
        tmp_path,
        weights,
        FEATURES,
        f"measure=[gate_importance,entropy,{unfit},ablation_delta]",
    )
    with pytest.raises(UserError, match="the batch has no labels"):  # said at the end
        mhprobe.probe.run(cfg, tmp_path / "run")
    tables = tmp_path / "run" / "tables"
    importance = [float(row["value"]) for row in runs.rows(tables / "gate_importance.csv")]
    assert min(importance) > 0 and (tables / "entropy.csv").exists()
    # negative control: of the classifier's loss it is another number
    mhprobe.probe.run(
        runs.config("probe", tmp_path, weights, "measure=[gate_importance]"), tmp_path / "whole"
    )
    loss = [
        float(r["value"]) for r in runs.rows(tmp_path / "whole" / "tables" / "gate_importance.csv")
    ]
    assert importance != pytest.approx(loss, rel=0.1)


def test_maps_of_features_are_judged_by_the_features_and_take_images_for_nothing(weights, tmp_path):
    few = ["images=[0,3]", "maps=[rollout,gradient_rollout,relevance_map]", "faithfulness.steps=2"]
    cfg = runs.config("maps", tmp_path, weights, FEATURES, *few, "faithfulness.random_orders=1")
    mhprobe.maps.__main__.run(cfg, tmp_path / "run")
    rows = runs.rows(tmp_path / "run" / "tables" / "maps.csv")
    assert list(rows[0]) == ["image", "label", "kind", "map", *Faithfulness._fields]
    areas = [float(row[name]) for row in rows for name in Faithfulness._fields]
    assert len(areas) == 2 * 3 * 4 and 0.5 < min(areas) < max(areas) < 1 and len(set(areas)) > 10
    assert "taken for" not in (tmp_path / "run" / "report.html").read_text()
    cfg = runs.config("maps", tmp_path, weights, FEATURES, *few, "maps.relevance_map.target=top1")
    with pytest.raises(
        UserError, match=r"relevance: .* gives features, no logits, .*target='norm' of .* a map"
    ):
        mhprobe.maps.__main__.run(cfg, tmp_path / "top1")


def test_what_features_cannot_be_asked_is_said_with_the_way_on(weights, tmp_path):
    by = (
        "+masking.curves.c.order={_target_: mhprobe.masking.by_score.ByScore, "
        "measure: {_partial_: true, _target_: %s}}"
    )
    ablation = by % "mhprobe.measures.ablation_delta.AblationDelta"
    cfg = runs.config("mask", tmp_path, weights, FEATURES, *SMALL, ablation)
    with pytest.raises(
        UserError,
        match=r"^masking\.curves\.c: .*no labels.* To go on without it: ~masking\.curves\.c\.$",
    ):
        mhprobe.mask.run(cfg, tmp_path / "run")
    tuned = [
        "prune=order",
        "prune/order=keep_best",
        "prune.remove=2",
        "prune.tune_epochs=1",
        "prune.images=30",
    ]
    cfg = runs.config("prune", tmp_path, weights, FEATURES, *tuned)
    with pytest.raises(
        UserError, match=r"^prune\.tune_epochs: training needs a classifier, and .* prune\.repair"
    ):
        mhprobe.prune.run(cfg, tmp_path / "run")


def test_what_has_no_classifier_is_not_trained(tmp_path, weights):
    for command in (
        "train",
        "study",
        "studies.voita",
        "studies.causal",
    ):  # before data or weights are read
        with pytest.raises(
            UserError, match=rf"0 leaves the classifier out, and mhprobe\.{command} needs one"
        ):
            runs.config(command, tmp_path, FEATURES, weights)
    made = {
        "backbone": {"name": "vit_tiny_patch16_224", **SIZE},
        "class_names": [],
        "data": "digits",
    }
    bare = build("vit_tiny_patch16_224", num_classes=0, **SIZE)
    write_all(weights_files(bare, tmp_path / "bare.safetensors", made))
    with pytest.raises(
        UserError, match=r"0 leaves the classifier out, and mhprobe\.study needs one"
    ):
        cfg = runs.config(
            "study", tmp_path, f"weights={tmp_path / 'bare.safetensors'}", "+paper=unique"
        )
        mhprobe.study.run(cfg, tmp_path / "run")
    with pytest.raises(UserError, match=r"backbone\.num_classes: the data says how many .* got 7"):
        mhprobe.mask.run(runs.config("mask", tmp_path, "backbone.num_classes=7"), tmp_path / "run")
    with pytest.raises(UserError, match=r"backbone\.num_classes: the data says how many .* got 7"):
        mhprobe.mask.run(
            runs.config("mask", tmp_path, "backbone.num_classes=7", weights), tmp_path / "run"
        )


def test_a_constant_fitted_to_logits_is_refused_to_features_before_any_image_is_seen(
    weights, tmp_path, monkeypatch
):
    given = (
        "prune=given",
        "prune.heads=[0]",
        "prune.fold=optimal",
        "prune.proj_bias=keep",
        FEATURES,
    )
    cfg = runs.config("prune", tmp_path, weights, *given)
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"^prune\.fold: optimal .* expected mean or z"),
    ):
        patch.setattr("mhprobe.pruning.rounds.Judge.show", None)
        mhprobe.prune.run(cfg, tmp_path / "prune")
    assert not (tmp_path / "prune" / "pruned.safetensors").exists()
    cfg = runs.config("mask", tmp_path, weights, FEATURES, *SMALL, ORDER, "masking.fill=optimal")
    with pytest.raises(UserError, match=r"fill: optimal is fitted to the loss of logits"):
        mhprobe.mask.run(cfg, tmp_path / "mask")


def test_a_pruning_by_relevance_of_features_is_told_of_the_measure_s_target_not_of_its_budget(
    weights, tmp_path
):
    order = (
        "prune=order",
        "prune/order=by_score",
        "prune.remove=2",
        "prune.images=30",
        "data.limit_test=40",
        FEATURES,
    )
    measure = "prune.order.measure._target_=mhprobe.measures.lrp_relevance.LRPRelevance"
    cfg = runs.config("prune", tmp_path, weights, *order, measure)
    with pytest.raises(UserError, match=r"gives features, no logits.*\(target='norm' of") as error:
        mhprobe.prune.run(cfg, tmp_path / "run")
    assert "prune.target" not in str(error.value)
