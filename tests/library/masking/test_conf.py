"""conf/masking holds the curves it promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

import runs
from mhprobe.masking.hurt_most import HurtMost
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.parts.curve import CurveSpec, known_orders
from mhprobe.masking.random import Random
from mhprobe.masking.redundant_or_inert import RedundantOrInert
from mhprobe.masking.search.auto import Auto
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.search.racing import Racing
from mhprobe.masking.search.screened import Screened

CONF = Path(__file__).parents[3] / "conf" / "masking"


def masking(name: str) -> DictConfig:
    """The group in its place, so that its interpolations resolve."""
    search = OmegaConf.load(CONF.parent / "search" / "auto.yaml")
    return OmegaConf.create(
        {"masking": OmegaConf.load(CONF / f"{name}.yaml"), "search": search}
    ).masking


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


def test_a_search_is_exact_for_few_candidates_and_fast_for_many_unless_told_otherwise():
    settings = [
        runs.checked("mask", *overrides) for overrides in ([], ["search=fast"], ["search=exact"])
    ]
    found = [instantiate(cfg.masking.curves["head_max"].order).search for cfg in settings]
    fast = Screened(20, Racing(epsilon=0.002, delta=0.01))
    assert found == [Auto(), fast, Exact()] and Auto() == Auto(Exact(), fast)


def test_orders_has_every_way_to_order_heads():
    curves = masking("orders").curves
    ways = {curve.order._target_.rpartition(".")[2] for curve in curves.values()}
    assert ways == {order.__name__ for order in known_orders().values()}
    scores = {
        curve.order.measure._target_.rpartition(".")[2]
        for curve in curves.values()
        if "measure" in curve.order
    }
    assert scores == {"GateImportance", "LRPRelevance", "Confidence", "AblationDelta", "Fisher"}
    assert any("rescore_every" in curve.order for curve in curves.values())


def test_none_has_the_same_settings_and_no_curves():
    none, six = masking("none"), masking("six_curves")
    assert set(none) == set(six) and none.curves == {} and none.join is None


@pytest.mark.parametrize("name", [path.stem for path in CONF.glob("*.yaml")])
def test_every_order_can_be_made_and_no_curves_ask_for_more(name):
    settings = masking(name)
    for curve in settings.curves.values():
        assert callable(instantiate(curve.order, _convert_="all").paths)
    assert settings.join is None


@pytest.mark.parametrize("command", ["mask", "train"])
def test_a_run_begins_with_the_best_order_importance_and_random_and_asks_no_more(command):
    settings = runs.checked(command, *(["weights=random"] if command == "mask" else [])).masking
    assert list(settings.curves) == ["head_max", "importance", "random"] and settings.join is None


def test_a_step_masks_as_many_heads_in_each_of_the_curves_that_a_run_begins_with():
    units = {name: curve.units for name, curve in masking("three_curves").curves.items()}
    assert units == {"head_max": "index", "importance": "index", "random": "head"}
    assert masking(
        "three_curves"
    ).curves.random.order.per_layer  # one head of each layer, as an index


@pytest.mark.parametrize("curves", ["three_curves", "single_heads", "six_curves", "orders"])
def test_what_masked_heads_are_is_asked_beside_any_curves(curves):
    told = (f"masking={curves}", "+masking/join=redundant_or_inert")
    join = runs.checked("mask", "weights=random", *told).masking.join
    made = instantiate(join, _convert_="all")
    assert isinstance(made, RedundantOrInert) and set(made.similar) == {"svcca", "cka"}


def test_worst_orders_are_there_on_request():
    assert {"head_min", "layer_min"} <= set(masking("six_curves").curves)
    assert "hurt_most" in masking("orders").curves
