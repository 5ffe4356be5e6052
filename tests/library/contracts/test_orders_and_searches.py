"""What every order and every search promises: held for each file of masking/ and of masking/search.

A new one is tested by being there, with a curve in a yaml of conf/masking (a search needs none).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import pkgutil
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

import mhprobe
import mhprobe.masking.search
import runs
from layouts import layout_of
from mhprobe.data.batch import Batch
from mhprobe.framework.run.sections import options_of_group as names_of
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Evaluate, Limits, Order, Scores
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.masking.parts.curve import known_orders
from mhprobe.masking.parts.units import constrain, make_units, targets_of
from mhprobe.masking.search.base import SearchStep
from mhprobe.scoring.parts.evaluate import Evaluator
from models import images_for, labels_for, make_loud, tiny_swin, tiny_vit
from oracles import masking as oracle

CONF = Path(__file__).parents[3] / "conf"
SEARCHES = {name: runs.checked("mask", f"search={name}").search for name in names_of("search")}


def _orders() -> dict[str, Order]:
    """Every order that a curve of conf/masking has; those that search a step, with every search."""
    found: dict[str, Order] = {}
    for path in sorted((CONF / "masking").glob("*.yaml")):
        masking = OmegaConf.load(path)
        for search, options in SEARCHES.items():
            settings = OmegaConf.create({"masking": masking, "search": options}).masking
            for name, curve in settings.curves.items():
                takes_search = "search" in curve.order
                if takes_search or search == "exact":
                    order = hydra.utils.instantiate(curve.order, _convert_="all")
                    found[f"{name} {search}" if takes_search else name] = order
    return {
        name: order
        for key, (name, order) in {
            cache_key(o=describe(o)): (n, o) for n, o in found.items()
        }.items()
    }


ORDERS = _orders()
LAYOUTS = {"vit": layout_of(4, 4, 4), "swin": layout_of(2, 2, 4, stages=(0, 0, 1))}


class Margins(Evaluate):
    """A model that is a table: each head adds something to every image's margin, so that heads differ and tie."""

    images = 60

    def __init__(self, layout: HeadLayout, seed: int = 0) -> None:
        generator, heads = torch.Generator().manual_seed(seed), layout.num_heads
        self.layout = layout
        self.base = torch.randn(self.images, generator=generator).round() + 0.5
        self.head = (torch.randn(heads, self.images, generator=generator)).round() / 2

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        margins = self.base - masks.float() @ self.head
        margins = margins if images is None else margins[:, images]
        self.spent += margins.numel()
        return Scores(margins > 0, torch.nn.functional.softplus(-margins).double())

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        self.spent += 2 * self.images
        slope = torch.sigmoid(-(self.base - mask.float() @ self.head)) * -self.head
        return slope.double().mean(1), slope.double().square().mean(1)

    def fisher(self, mask: Tensor) -> list[Tensor]:
        self.spent += 2 * self.images
        slope = (torch.sigmoid(-(self.base - mask.float() @ self.head)) * -self.head).double()
        return [
            part @ part.mT / self.images
            for part in slope.split([site.num_heads for site in self.layout.sites])
        ]

    def measure(self, make, mask, column="value"):
        return self.head.mean(1).double() + mask.double()

    def score(self, masked: frozenset[int]) -> int:
        mask = torch.zeros(1, len(self.head), dtype=torch.bool)
        mask[0, sorted(masked)] = True
        return int(self(mask).correct)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture(params=ORDERS)
def order(request):
    return ORDERS[request.param]


def test_every_order_of_the_package_has_a_curve_in_conf():
    assert {type(order) for order in ORDERS.values()} == set(known_orders().values())
    assert len(ORDERS) >= len(known_orders()) > 3


PRUNES = sorted(path.stem for path in (CONF / "prune/order").glob("*.yaml"))


def test_a_name_is_the_same_method_in_prune_and_in_prunebench():
    """A method is one yaml: a new one of heads and neurons has to be in the bench."""
    methods = runs.composed("prunebench").method
    orders = {
        name: runs.composed("prune", "prune=order", f"prune/order={name}").prune.order
        for name in PRUNES
    }
    kinds = {name: hydra.utils.get_class(order._target_) for name, order in orders.items()}
    of_both = {
        name for name, kind in kinds.items() if not issubclass(kind, Order) or kind.of_neurons
    }
    assert set(methods) == of_both - {"knapsack"}  # which is fisher until it gets another measure
    assert {name: methods[name] for name in methods} == {name: orders[name] for name in methods}
    twins = [
        pair for pair in itertools.combinations(orders, 2) if orders[pair[0]] == orders[pair[1]]
    ]
    assert twins == [("fisher", "knapsack")]


@pytest.mark.parametrize("name", ["index", "layer", "head"])
def test_paths_mask_every_head_once_and_are_the_same_again(order, layout, name):
    units = make_units(name, layout)
    paths = order.paths(units, layout, Margins(layout))
    again = order.paths(units, layout, Margins(layout))
    assert len(paths) == len(again) > 0
    for path, same in zip(paths, again, strict=True):
        assert (path.added.sum(0) == 1).all() and path.added.any(1).all()
        assert torch.equal(path.added, same.added) and (path.names, path.seed) == (
            same.names,
            same.seed,
        )
        assert len(path.names) == len(path.added) == order.length(units, layout)
        assert len(path.spent) in (0, len(path.names)) and len(path.exhaustive) == len(path.spent)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_paths_end_where_they_are_told(order, layout, steps):
    units = make_units("head", layout)
    for path in order.paths(units, layout, Margins(layout), steps):
        assert len(path.names) == len(path.added) == steps


def test_an_order_that_does_not_search_asks_nothing(order, layout):
    evaluate = Margins(layout)
    evaluate.spent = 0
    order.paths(make_units("head", layout), layout, evaluate)
    assert order.searches or evaluate.spent == 0


@pytest.mark.parametrize(
    ("floor", "heads"),
    [(0, None), (0, 0), (0, 4), (1, None), (1, 3), (1, 7), (2, None), (2, 5), (2, 7)],
)
def test_paths_keep_to_their_limits(order, floor, heads):
    layout = layout_of(3, 4, 1)  # the layer of one head cannot keep two
    nearest = sum(min(floor, site.num_heads) for site in layout.sites)
    targets = () if heads is None else targets_of({"heads": heads}, layout, {})
    units = constrain(make_units("head", layout), Limits(layout, floor, targets), "c")
    for path in order.paths(units, layout, Margins(layout)):
        masks = path.masks()
        assert all(
            (~part).sum() >= min(floor, len(part)) for mask in masks for part in layout.split(mask)
        )
        left = (~masks).sum(1).tolist()
        assert left[-1] == nearest if heads is None else left[-1] <= heads
        assert heads is None or all(count > heads for count in left[:-1])


# --- on a model


FAMILIES = {"vit": tiny_vit, "swin": tiny_swin}
IMAGES = 11


@pytest.fixture(params=FAMILIES)
def model(request):
    model = FAMILIES[request.param]()
    make_loud(model, 0.2)
    gates = mhprobe.attach(model)
    with torch.no_grad():  # one head is closed for good, the others let through more or less
        gates.values.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
        gates.values[1] = 0
    return model


def evaluate_of(model, folder=None):
    images, labels = images_for(model, IMAGES), labels_for(IMAGES)

    def walk(index):
        return [
            Batch(images[i], labels[i], i, torch.ones(len(i), dtype=torch.bool))
            for i in index.split(4)
        ]

    cache = None if folder is None else MaskCache(folder, "key")
    return Evaluator(model, lambda: walk(torch.arange(IMAGES)), IMAGES, pick=walk, cache=cache)


class Killed(Exception):
    pass


def dies_after(evaluate, calls: int):
    """The evaluator, until it was asked so often."""
    real, asked = type(evaluate).__call__, 0

    class Dying(type(evaluate)):
        def __call__(self, masks, images=None):
            nonlocal asked
            asked += 1
            if asked > calls:
                raise Killed
            return real(self, masks, images)

    evaluate.__class__ = Dying
    return evaluate


@pytest.mark.parametrize("name", ["layer", "head"])
def test_a_search_that_was_killed_costs_what_was_missing_and_says_what_it_would_have_said(
    order, model, name, tmp_path
):
    layout = mhprobe.attach(model).layout
    units = make_units(name, layout)
    whole = evaluate_of(model, tmp_path / "whole")
    expected = order.paths(units, layout, whole, 3)
    first = dies_after(evaluate_of(model, tmp_path / "killed"), 2)
    with contextlib.suppress(Killed):
        order.paths(units, layout, first, 3)
    resumed = evaluate_of(model, tmp_path / "killed")
    found = order.paths(units, layout, resumed, 3)
    for path, other in zip(found, expected, strict=True):
        assert torch.equal(path.added, other.added)
        assert (path.names, path.spent, path.exhaustive) == (
            other.names,
            other.spent,
            other.exhaustive,
        )
    assert resumed.spent == whole.spent and first.computed + resumed.computed == whole.computed
    again = evaluate_of(model, tmp_path / "killed")
    order.paths(units, layout, again, 3)
    assert again.computed == 0 and again.spent == whole.spent


def test_a_greedy_path_is_the_oracles_also_with_a_closed_gate(model):
    layout = mhprobe.attach(model).layout
    units = make_units("head", layout)
    evaluate = evaluate_of(model)

    def score(masked: frozenset[int]) -> int:
        gates, before = mhprobe.attach(model), mhprobe.attach(model).values.clone()
        with torch.no_grad():
            gates.values[sorted(masked)] = 0
            right = (model(images_for(model, IMAGES)).argmax(1) == labels_for(IMAGES)).sum()
            gates.values.copy_(before)
        return int(right)

    sets = [frozenset(torch.nonzero(mask).flatten().tolist()) for mask in units.masks]
    greedy = [order for name, order in ORDERS.items() if name.endswith("exact")]
    assert greedy
    for order in greedy:
        (path,) = order.paths(units, layout, evaluate)
        expected, _ = oracle.greedy(sets, score, highest=order.prefers > 0)
        assert [units.names.index(unit) for unit in path.names] == expected


# --- searches


@pytest.fixture(params=SEARCHES)
def search(request):
    return hydra.utils.instantiate(SEARCHES[request.param], _convert_="all")


def test_every_search_of_the_package_has_a_yaml():
    found = set()
    for module in pkgutil.iter_modules(mhprobe.masking.search.__path__, "mhprobe.masking.search."):
        for item in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(item) and item.__module__ == module.name and hasattr(item, "choose"):
                found |= set() if getattr(item, "_is_protocol", False) else {item}
    assert found == {type(hydra.utils.instantiate(options)) for options in SEARCHES.values()}


@pytest.mark.parametrize("prefers", [1, -1])
@pytest.mark.parametrize("seed", range(5))
def test_with_few_candidates_and_images_every_search_chooses_as_the_oracle_does(
    search, prefers, seed
):
    table = Margins(layout_of(12), seed)
    step = SearchStep(torch.zeros(12, dtype=torch.bool), torch.eye(12, dtype=torch.bool), prefers)
    choice = search.choose(step, table)
    expected, _ = oracle.greedy([frozenset([head]) for head in range(12)], table.score, prefers > 0)
    assert choice.candidate == expected[0] == search.choose(step, table).candidate
    if choice.scores is not None:
        assert choice.scores.correct.tolist() == [table.score(frozenset([choice.candidate]))]
        assert choice.scores.losses.shape == (1, table.images)


def test_every_search_takes_the_only_candidate(search):
    step = SearchStep(torch.zeros(12, dtype=torch.bool), torch.eye(12, dtype=torch.bool)[3:4], 1)
    assert search.choose(step, Margins(layout_of(12))).candidate == 0
