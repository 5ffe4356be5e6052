"""conf/masking holds the curves it promises."""

from __future__ import annotations

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from mhprobe.masking.curve import CurveSpec
from mhprobe.masking.hurt_most import HurtMost
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.random import Random

CONF = Path(__file__).parents[2] / "conf" / "masking"


def test_six_curves_are_the_seed_papers_six():
    settings = OmegaConf.load(CONF / "six_curves.yaml")
    specs = {
        name: CurveSpec(name, curve.units, instantiate(curve.order), list(curve.exclude_layers))
        for name, curve in settings.curves.items()
    }
    assert specs == {
        "head_max": CurveSpec("head_max", "index", KeepBest(), []),
        "head_min": CurveSpec("head_min", "index", HurtMost(), []),
        "layer_max": CurveSpec("layer_max", "layer", KeepBest(), []),
        "layer_min": CurveSpec("layer_min", "layer", HurtMost(), []),
        "layer_max2": CurveSpec("layer_max2", "layer", KeepBest(), [-1]),
        "random": CurveSpec("random", "head", Random(repeats=10, seed=0, per_layer=True), []),
    }
    assert (settings.select_on, settings.steps, settings.step) == ("validation", None, None)


def test_none_has_the_same_settings_and_no_curves():
    none, six = (OmegaConf.load(CONF / f"{name}.yaml") for name in ("none", "six_curves"))
    assert set(none) == set(six) and none.curves == {}
