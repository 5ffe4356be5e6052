"""conf/masking holds the curves it promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from mhprobe.callbacks.maskable import Maskable
from mhprobe.masking.curve import CurveSpec
from mhprobe.masking.hurt_most import HurtMost
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.random import Random

CONF = Path(__file__).parents[2] / "conf" / "masking"


def masking(name: str) -> DictConfig:
    """The group in its place, so that its interpolations resolve."""
    return OmegaConf.create({"masking": OmegaConf.load(CONF / f"{name}.yaml")}).masking


def test_six_curves_are_the_seed_papers_six():
    settings = masking("six_curves")
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
    none, six = masking("none"), masking("six_curves")
    assert set(none) == set(six) and none.curves == {} and none.join is None


@pytest.mark.parametrize("name", [path.stem for path in CONF.glob("*.yaml")])
def test_every_order_and_join_can_be_made(name):
    settings = masking(name)
    for curve in settings.curves.values():
        assert callable(instantiate(curve.order, _convert_="all").paths)
    if settings.join is not None:
        assert isinstance(instantiate(settings.join, _convert_="all"), Maskable)
