"""A budget of heads and neurons: what goes is the least score that the budget allows, up to the last unit."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest
import torch

import mhprobe
from layouts import layout_of as heads_layout
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.masking import base
from mhprobe.masking.base import Evaluate, Limits, PathTarget, Units
from mhprobe.masking.fisher import Fisher as FisherOrder
from mhprobe.masking.keep_best import KeepBest
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.parts.units import STEPS, Unreached, bundled, make_units, savings, targets_of
from mhprobe.masking.random import Random
from mhprobe.masking.search.exact import Exact
from mhprobe.masking.turns import Turns
from mhprobe.measures import Entropy, Fisher
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import ShownChooser
from mhprobe.surgery.costs import costs, count_flops, count_parameters
from models import images_for, tiny_eva, tiny_swin, tiny_vit
from pruned import spared


class Scores(Evaluate):
    """Any numbers as scores."""

    def __init__(self, score_A):
        self.score_A = score_A

    def measure(self, make, mask, column="value"):
        return self.score_A


def mixed(*neurons: int) -> HeadLayout:
    heads = heads_layout(3, 3)
    mlps = [
        dataclasses.replace(site, name=f"mlp{n}", num_heads=count, head_dim=1, kind="neuron")
        for n, (site, count) in enumerate(zip(heads.sites, neurons, strict=True))
    ]
    return HeadLayout((*heads.sites, *mlps))


def limited(layout, share, head=10.0, neuron=1.0, floor=0):
    """Units under a target in a made-up cost: a head costs ten neurons; what is left is a share of all units' cost."""
    cost_A = torch.tensor(
        [head if site.kind == "head" else neuron for _, _, site in layout], dtype=torch.float64
    )
    target = PathTarget("flops", share, lambda masks: 1 - masks.double() @ cost_A / cost_A.sum())
    everything = torch.ones(1, layout.num_heads, dtype=torch.bool)
    return Units(("all",), everything, limits=Limits(layout, floor, (target,))), cost_A


def chosen(layout, units, score_A, **options):
    path = Knapsack(measure=Fisher, **options).paths(units, layout, Scores(score_A))[0]
    assert len(path.added) <= STEPS and (path.added.sum(0) <= 1).all()
    return path.masks()[-1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_no_set_that_meets_the_budget_loses_less_but_by_the_last_unit(seed, share):
    """Against every set of 6 heads and 8 neurons.

    Greedy by score per cost is optimal but for the unit it ends in.
    """
    layout = mixed(4, 4)
    units, cost_A = limited(layout, share)
    score_A = (
        torch.rand(14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * cost_A.sqrt()
    )
    mask = chosen(layout, units, score_A)
    every = torch.tensor(list(itertools.product([False, True], repeat=14)))
    fits = 1 - every.double() @ cost_A / cost_A.sum() <= share + 1e-9
    best = float((every[fits].double() @ score_A).min())
    lost = float(mask.double() @ score_A)
    assert units.limits.targets[0].left(mask) <= share + 1e-9
    assert best <= lost + 1e-12 and lost - best <= float(score_A.max())
    # nothing that went need not have gone
    for unit in mask.nonzero().flatten().tolist():
        assert units.limits.targets[0].left(mask & (torch.arange(14) != unit)) > share + 1e-9
    worst = float((every[fits].double() @ score_A).max())
    assert lost < 0.5 * (best + worst)  # a random set of the budget would not do


@pytest.mark.parametrize("normalize", ["none", "layer"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_with_scores_below_zero_no_set_that_saves_as_much_loses_less(normalize, share):
    """Against every set that meets the target and saves no more than the chosen one, up to the last unit."""
    every = torch.tensor(list(itertools.product([False, True], repeat=14)))
    for seed in range(8):
        layout = mixed(4, 4)
        units, cost_A = limited(layout, share)
        score_A = (
            torch.randn(14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            * cost_A.sqrt()
        )
        mask = chosen(layout, units, score_A, normalize=normalize)
        if normalize == "layer":
            score_A = torch.cat([part / part.abs().mean() for part in layout.split(score_A)])
        saved, sums = every.double() @ cost_A, every.double() @ score_A
        fits = (saved >= (1 - share) * cost_A.sum() - 1e-9) & (
            saved <= mask.double() @ cost_A + 1e-9
        )
        last = max(
            0.0, float((score_A / cost_A)[mask].max() * cost_A.max())
        )  # the unit that the order ends in
        assert float(mask.double() @ score_A) - last <= float(sums[fits].min()) + 1e-9


def test_ranks_among_their_like_take_the_same_share_of_each():
    layout = mixed(40, 40)
    score_A = torch.rand(86, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score_A[:6] += 100  # by score no head would go
    units, _ = limited(layout, 0.5)
    assert not chosen(layout, units, score_A)[:6].any()
    groups = chosen(layout, units, score_A, compete="group")
    assert groups[:6].sum() == 3 and abs(int(groups[6:].sum()) - 40) <= 5
    layers = chosen(layout, units, score_A, compete="layer")
    assert {int(part.sum()) for part in layout.split(layers)[:2]} <= {1, 2}
    assert abs(int(layers[6:46].sum()) - int(layers[46:].sum())) <= 1


class Information(Evaluate):
    """Slopes of 60 images, of which three neurons of the first MLP are twins."""

    def __init__(self, layout, seed):
        generator = torch.Generator().manual_seed(seed)
        slopes = torch.randn(60, layout.num_heads, generator=generator, dtype=torch.float64)
        slopes[:, :6] *= 30
        slopes[:, 7:9] = slopes[:, 6:7] = 0.5 * slopes[:, 6:7]
        self.blocks = [
            part.mT @ part / 60
            for part in slopes.split([site.num_heads for site in layout.sites], 1)
        ]

    def slopes(self, mask):
        diagonal = torch.cat([block.diagonal() for block in self.blocks])
        return diagonal * 0, diagonal

    def fisher(self, mask):
        return self.blocks


@pytest.mark.parametrize("seed", range(4))
def test_fisher_exchanges_neurons_until_no_exchange_helps_and_keeps_every_width(seed):
    """The diagonal takes all three twins, which cost nine times one of them together."""
    layout = mixed(8, 8)
    units, _ = limited(layout, 0.9)
    masks = []
    for rearranged in (False, True):
        (path,) = FisherOrder(rearranged=rearranged).paths(units, layout, Information(layout, seed))
        masks.append(path.masks()[-1])
        assert units.limits.targets[0].left(masks[-1]) <= 0.9 + 1e-9 and len(path.added) <= STEPS
    twins = slice(6, 9)
    assert masks[0][twins].all() and masks[1][twins].sum() < 3
    for block, before, after in zip(
        Information(layout, seed).blocks, *map(layout.split, masks), strict=True
    ):
        off = after.nonzero().flatten().tolist()
        cost = float(block[off][:, off].sum())
        assert len(off) == int(before.sum())
        for goes, stays in itertools.product(set(range(len(block))) - set(off), off):
            other = [goes, *(unit for unit in off if unit != stays)]
            assert float(block[other][:, other].sum()) >= cost - 1e-9


class Additive(Evaluate):
    """A loss to which every unit adds its own: trying and Fisher information know the same."""

    images = 40

    def __init__(self, cost_A):
        self.cost_A = cost_A

    def __call__(self, masks, images=None):
        count = self.images if images is None else len(images)
        loss_M = masks.double() @ self.cost_A
        right = torch.arange(count) >= loss_M[:, None] / self.cost_A.sum() * count
        return base.Scores(right, loss_M[:, None].expand(-1, count))

    def slopes(self, mask):
        return self.cost_A, self.cost_A


@pytest.mark.parametrize("seed", range(4))
def test_in_turns_heads_and_neurons_meet_the_budget_for_little_more_than_the_best_set(seed):
    """Against every set of 6 heads and 8 neurons: what is lost beyond the best is a last head at the most."""
    layout = mixed(4, 4)
    units, cost_A = limited(layout, 0.5, floor=1)
    loss_A = (
        torch.rand(14, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * cost_A
    )
    (path,) = Turns(turns=6, tie_break="loss", search=Exact()).paths(
        units, layout, Additive(loss_A)
    )
    mask = path.masks()[-1]
    every = torch.tensor(list(itertools.product([False, True], repeat=14)))
    fits = (1 - every.double() @ cost_A / cost_A.sum() <= 0.5 + 1e-9) & units.limits.permits(
        every[0], every
    )
    losses = every[fits].double() @ loss_A
    lost = float(mask.double() @ loss_A)
    assert units.limits.targets[0].left(mask) <= 0.5 + 1e-9 and units.limits.permits(
        every[0], mask[None]
    )
    assert losses.min() <= lost + 1e-12 and lost - losses.min() <= loss_A.max()
    assert lost < 0.6 * losses.max()  # a set of the budget would not do
    with pytest.raises(
        mhprobe.UserError, match="masking order turns: of heads and neurons it needs a target"
    ):
        Turns().paths(dataclasses.replace(units, limits=None), layout, Additive(loss_A))


class Quadratic(Additive):
    """A loss in which units stand in for each other: each is missed the more, the more others are off."""

    def __init__(self, cost_A, seed):
        super().__init__(cost_A)
        noise = torch.rand(
            len(cost_A),
            len(cost_A),
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
        )
        self.pair_AA, self.tried = (noise + noise.T) * cost_A.mean() / 8, 0

    def __call__(self, masks, images=None):
        self.tried += len(masks)
        off = masks.double()
        loss_M = off @ self.cost_A + (off @ self.pair_AA * off).sum(1) / 2
        return base.Scores(
            torch.ones(len(masks), self.images, dtype=torch.bool),
            loss_M[:, None].expand(-1, self.images),
        )

    def loss(self, off):
        return float(
            self(torch.tensor([[unit in off for unit in range(len(self.cost_A))]])).mean_loss
        )


def in_turns(loss, layout, saving, floor, goals):
    """Units that go, in order of the parts, by trying every head at every step."""
    heads = [unit for unit, (_, _, site) in enumerate(layout) if site.kind == "head"]
    site_of = [number for number, _, _ in layout]

    def left(off):
        return 1 - sum(saving[unit] for unit in off)

    def stays(off, unit):
        return (
            sum(site_of[other] == site_of[unit] for other in set(range(len(saving))) - {*off})
            > floor
        )

    off: list[int] = []
    for goal in goals:
        while left(off) > goal + 1e-9:
            ways = []
            neurons = list(off)
            for unit in sorted(
                set(range(len(saving))) - {*heads, *off}, key=lambda u: loss.cost_A[u] / saving[u]
            ):
                if left(neurons) > goal + 1e-9 and stays(neurons, unit):
                    neurons.append(unit)
            some = list(off)
            while left(some) > goal + 1e-9 and (
                free := [h for h in heads if h not in some and stays(some, h)]
            ):
                some.append(min(free, key=lambda head: loss.loss([*some, head])))
            for way in (some, neurons):
                if way != off:
                    ways.append(((loss.loss(way) - loss.loss(off)) / (left(off) - left(way)), way))
            off = min(ways, key=lambda way: way[0])[1]
    return off


@pytest.mark.parametrize("seed", range(5))
def test_heads_that_are_tried_when_they_are_due_are_those_of_trying_every_head(seed):
    """Where a head is missed the more, the more units are off: the same sets, with fewer heads tried."""
    layout = mixed(5, 6)
    units, cost_A = limited(layout, 0.5, head=2.0, floor=1)
    noise = torch.rand(
        len(cost_A), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    loss = Quadratic((0.2 + noise) * cost_A, seed)
    (path,) = Turns(turns=4).paths(units, layout, loss)
    lazily, loss.tried = loss.tried, 0
    saving = (cost_A / cost_A.sum()).tolist()
    expected = in_turns(loss, layout, saving, 1, [1 - 0.5 * turn / 4 for turn in range(1, 5)])
    assert path.masks()[-1].nonzero().flatten().tolist() == sorted(expected)
    assert lazily < 0.6 * loss.tried  # and some of them are heads, some neurons:
    assert {list(layout)[unit][2].kind for unit in expected} == {"head", "neuron"}


def test_in_turns_losses_are_of_as_many_images_as_are_shown_and_slopes_of_all():
    layout = mixed(5, 6)
    units, cost_A = limited(layout, 0.5, head=2.0, floor=1)
    loss, judged = Quadratic(cost_A, 0), []

    class Noted(Quadratic):
        def __call__(self, masks, images=None):
            judged.append(images)
            return super().__call__(masks, images)

    whole = Turns(turns=4).paths(units, layout, loss)[0]
    some = Turns(turns=4, shown=12).paths(units, layout, Noted(cost_A, 0))[0]
    assert some.masks().equal(whole.masks()) and judged  # of a loss that every image has alike
    assert all(
        images.tolist() == [*range(0, 40, 4)] for images in judged
    )  # evenly spread, 12 at most of 40
    Turns(turns=4).paths(units, layout, Noted(cost_A, 0))
    assert judged[-1] is None
    with pytest.raises(
        mhprobe.UserError,
        match=r"turns\.shown: expected a whole number of at least 1 or null, got 0",
    ):
        Turns(shown=0)


@pytest.mark.parametrize("dear", [True, False])
def test_no_more_heads_are_tried_once_they_cost_more_than_the_neurons(dear):
    """In one part of three units: dear heads are tried once each, cheap ones again as they go."""
    layout = mixed(4, 4)
    units, cost_A = limited(layout, 0.8, head=1.0)  # three units of 14
    is_head = torch.tensor([site.kind == "head" for *_, site in layout])
    loss = Quadratic(torch.where(is_head, 100.0 if dear else 0.01, 1.0) * cost_A, 0)
    (path,) = Turns(turns=1).paths(units, layout, loss)
    assert int(path.added.sum()) == 3 and int(path.added[:, is_head].sum()) == (0 if dear else 3)
    assert (
        loss.tried == 2 + 6 if dear else loss.tried > 2 + 6
    )  # all on, without the neurons, without each head


def test_what_a_head_costs_on_top_of_heads_that_do_not_go_is_forgotten():
    """Two heads may go, not both.

    After four neurons the first one is missed more than the second alone.
    """
    layout = mixed(6, 6)
    units, cost_A = limited(
        layout, 0.75, head=2.0
    )  # six of 24: first three, which take four neurons, then two
    may_go = torch.ones_like(units.masks)
    may_go[:, 2:6] = False
    cost_A = torch.cat(
        [torch.tensor([1.5, 1.8, 9.0, 9.0, 9.0, 9.0]), torch.ones(4), torch.full((8,), 2.0)]
    ).double()
    loss = Quadratic(cost_A, 0)
    loss.pair_AA = torch.zeros(18, 18, dtype=torch.float64)
    loss.pair_AA[0, 1] = loss.pair_AA[1, 0] = 10.0
    loss.pair_AA[0, 6:10] = loss.pair_AA[6:10, 0] = 0.5
    (path,) = Turns(turns=2, multiple=2).paths(
        dataclasses.replace(units, masks=may_go), layout, loss
    )
    assert path.masks()[-1].nonzero().flatten().tolist() == [1, 6, 7, 8, 9]


def test_chance_takes_the_same_share_of_heads_and_of_neurons():
    layout = mixed(40, 40)
    units, _ = limited(layout, 0.5)
    paths = Random(repeats=3).paths(units, layout)
    masks = [path.masks()[-1] for path in paths]
    assert [path.seed for path in paths] == [0, 1, 2] and not torch.equal(masks[0], masks[1])
    assert all(int(mask[:6].sum()) == 3 and 35 <= int(mask[6:].sum()) <= 45 for mask in masks)
    assert all(units.limits.targets[0].left(mask) <= 0.5 for mask in masks)


def test_layers_of_large_scores_count_no_more_than_others_once_they_are_normalised():
    layout = mixed(40, 40)
    score_A = torch.rand(86, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score_A[46:] *= 1000
    units, _ = limited(layout, 0.35)
    raw, even = chosen(layout, units, score_A), chosen(layout, units, score_A, normalize="layer")
    assert raw[46:].sum() == 0 and even[46:].sum() > 5


def test_widths_are_multiples_and_layers_keep_their_least():
    layout = mixed(40, 64)
    score_A = torch.rand(110, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units, _ = limited(layout, 0.4, floor=1)
    mask = chosen(layout, units, score_A, multiple=8)
    left = [int((~part).sum()) for part in layout.split(mask)]
    assert left[2] % 8 == left[3] % 8 == 0 and min(left) >= 1 and left[2] < 40
    with pytest.raises(mhprobe.UserError, match=r"mlp0 has 40 neurons, which is no multiple of 16"):
        chosen(layout, units, score_A, multiple=16)
    with pytest.raises(
        mhprobe.UserError, match="multiple: expected a whole number of at least 1, got 0"
    ):
        Knapsack(measure=Fisher, multiple=0)


@pytest.mark.parametrize(
    "build", [tiny_vit, tiny_swin, lambda: tiny_eva(name="eva02_tiny_patch14_224")]
)
def test_costs_of_neurons_are_what_their_removal_spares(build):
    model = build()
    units = KINDS if build in (tiny_vit, tiny_swin) else {"neuron"}
    layout, image = layout_of(model, units), images_for(model, 1)
    mask = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(0)) < 0.4
    small = mhprobe.prune_heads(model, mask, units=units)
    for unit, count in (
        ("flops", lambda network: count_flops(network, image)),
        ("params", count_parameters),
    ):
        share_A = spared(model, layout, image, unit)
        assert (
            count(model) - count(small)
            == pytest.approx(float(share_A[mask].sum()) * count(model), abs=1e-3)
            != 0
        )
    left = costs(model, layout, image, {"params"})["params"](mask[None])
    assert float(left) == pytest.approx(count_parameters(small) / count_parameters(model))
    target = PathTarget("params", 0.5, costs(model, layout, image, {"params"})["params"])
    expected = spared(model, layout, image, "params")
    torch.testing.assert_close(savings(Limits(layout, 0, (target,)), layout), expected)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"compete": "groups"}, "compete is one of all, group, layer"),
        ({"normalize": "l2"}, "normalize is one of none"),
    ],
)
def test_a_misspelt_way_to_compare_is_no_other_way(option, words):
    with pytest.raises(mhprobe.UserError, match=rf"^masking order knapsack: {words}.*, got '"):
        Knapsack(measure=Fisher, **option)


@pytest.mark.parametrize(
    ("order", "options", "words"),
    [
        (
            KeepBest(),
            {"target": {"flops": 0.5}},
            "^order: expected gates on heads alone, .* 192 neurons",
        ),
        (
            Knapsack(measure=Fisher),
            {"target": {"flops": 0.5}, "units": "layer"},
            "^units: expected gates on heads alone",
        ),
        (Knapsack(measure=Fisher), {"remove": 3}, "it counts heads; for heads and neurons"),
        (
            Knapsack(measure=Fisher),
            {"target": {"heads": 3}},
            "it counts heads; for heads and neurons",
        ),
        (
            Knapsack(measure=Fisher),
            {"target": {"flops": 0.01}},
            r"flops=0.01 can't be met: .* 0\.\d+ is left",
        ),
        (
            Knapsack(measure=Fisher),
            {"target": {"flops": 0.5}, "exclude_layers": [4]},
            "-4 to 3, got 4",
        ),
        (Knapsack(measure=Entropy), {"target": {"flops": 0.5}}, "entropy: is of heads"),
    ],
)
def test_what_a_mix_cannot_be_asked_is_refused_in_a_line(order, options, words):
    model = tiny_vit()
    layout = mhprobe.attach(model, units=KINDS).layout

    class Table(Scores):
        def measure(self, make, mask, column="value"):
            make(layout)
            return self.score_A

    source = OnPath(order, **options)
    with pytest.raises(mhprobe.UserError, match=words) as error:
        source.check(model, 1)
        source.choose(
            model, Table(torch.arange(198.0)), lambda: images_for(model, 1), layout, 1.0, 1.0
        )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "order",
    [Knapsack(measure=Fisher), FisherOrder(), Random()],
    ids=["knapsack", "fisher", "random"],
)
def test_a_budget_below_what_is_left_without_any_unit_is_refused_before_anything_is_scored(order):
    model = tiny_vit()
    layout, image = mhprobe.attach(model, units=KINDS).layout, images_for(model, 1)
    least = float(
        costs(model, layout, image, {"flops"})["flops"](
            torch.ones(1, layout.num_heads, dtype=torch.bool)
        )
    )
    source = OnPath(order, target={"flops": least - 0.01})
    words = rf"^prune\.target: flops={least - 0.01:g} can't be met: .* (0\.\d+) is left\. Ask for at least that"
    for refuse in (
        lambda: source.check(model, 1),
        lambda: source.choose(model, Scores(None), lambda: image, layout, 1.0, 1.0),
        lambda: source.choose(
            model, Scores(None), lambda: image, layout, 1.0, 0.5
        ),  # in the first of two rounds
        lambda: ShownChooser(None, {"flops": least - 0.01}).check(model, 1),
    ):
        with pytest.raises(mhprobe.UserError, match=words) as error:
            refuse()
    # no limit is named that nobody has set
    assert error.type is Unreached and str(error.value) == f"prune.target: {error.value.reason}."
    held = OnPath(order, target={"flops": 0.05}, exclude_layers=[0], min_heads_per_layer=1)
    words = r"may be \(exclude_layers, min_heads_per_layer=1\), 0\.\d+ is left\. .* that, or lift these limits\.$"
    with pytest.raises(mhprobe.UserError, match=words):
        held.check(model, 1)
    nearest = float(re.search(r"(\d\.\d+) is left", str(error.value))[1])
    one = float(spared(model, layout, image).max())  # of a head, the costlier unit
    assert least + one <= nearest <= least + one + 1e-4
    OnPath(order, target={"flops": nearest}).check(model, 1)
    with pytest.raises(mhprobe.UserError, match=r"min_heads_per_layer=2"):
        OnPath(order, target={"flops": nearest}, min_heads_per_layer=2).check(model, 1)


def test_what_it_refuses_it_refuses_by_its_own_name():
    layout = heads_layout(3, 3)
    with pytest.raises(
        mhprobe.UserError,
        match=r"^masking order knapsack: expected a measure or a table, got neither",
    ):
        Knapsack()
    with pytest.raises(
        mhprobe.UserError, match=r"^masking order knapsack: the score of \S+ head 2 is nan"
    ):
        Knapsack(measure=Fisher).paths(
            make_units("head", layout), layout, Scores(torch.tensor([1, 2, torch.nan] * 2))
        )


def test_a_step_of_one_unit_is_named_in_the_singular():
    layout = layout_of(tiny_vit(), KINDS)
    path = bundled([torch.tensor([0]), torch.tensor([7, 8])], layout)
    assert path.names == ("1 head, 0 neurons", "0 heads, 2 neurons")
    alone = heads_layout(1)
    (path,) = Random(repeats=1, per_layer=True).paths(
        make_units("head", alone), alone, Scores(torch.ones(1))
    )
    assert (alone.counted, path.names) == ("1 head", ("1 random head",))


def test_units_of_several_heads_go_by_their_sums_and_have_no_rank_among_single_heads():
    layout = heads_layout(3, 3)
    scores = Scores(torch.tensor([3.0, 3, 3, 5, 1, 1]))
    for name, expected in (("layer", [1, 0]), ("index", [1, 2, 0])):
        units = make_units(name, layout)
        (path,) = Knapsack(measure=Fisher).paths(units, layout, scores)
        assert path.names == tuple(units.names[unit] for unit in expected)
        for compete in ("layer", "group"):
            with pytest.raises(
                mhprobe.UserError, match=rf"^masking order knapsack: compete={compete} ranks single"
            ):
                Knapsack(measure=Fisher, compete=compete).paths(units, layout, scores)


def test_a_budget_is_met_in_rounds():
    model = tiny_vit()
    layout = mhprobe.attach(model, units=KINDS).layout
    source = OnPath(Knapsack(measure=Fisher), target={"params": 0.6})
    image = images_for(model, 1)
    first, left = source.choose(model, Scores(torch.arange(198.0)), lambda: image, layout, 1.0, 0.5)
    smaller = mhprobe.prune_heads(model, first.mask)
    mhprobe.attach(smaller, units=KINDS)
    last, left = source.choose(
        smaller, Scores(torch.arange(198.0)[~first.mask]), lambda: image, layout, left, 1.0
    )
    whole, half, end = map(
        count_parameters, (model, smaller, mhprobe.prune_heads(smaller, last.mask))
    )
    assert (
        0.75 < half / whole <= 0.8 and 0.55 < end / whole <= 0.6
    )  # a head is a twentieth of this model
    assert left == pytest.approx(end / whole)


@pytest.mark.parametrize("seed", range(3))
def test_a_budget_of_each_kind_takes_the_lowest_scores_of_each_kind(seed):
    layout = mixed(20, 20)
    score_A = torch.rand(
        layout.num_heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    score_A[:6] *= 100  # heads and neurons do not compete
    targets = targets_of({"neuron": 0.72, "head": 0.5}, layout, {})
    units, _ = limited(layout, 0.5)
    off = chosen(layout, dataclasses.replace(units, limits=Limits(layout, 0, targets)), score_A)
    lowest = [
        *score_A[:6].argsort()[:3].tolist(),
        *(6 + score_A[6:].argsort()[:12]).tolist(),
    ]  # 28 of 40 are below .72
    assert sorted(off.nonzero().flatten().tolist()) == sorted(lowest)


@pytest.mark.parametrize(
    "setting", [{"head": 0.5}, {"head": 0.5, "neuron": 1.5}, {"heads": 0.5, "neuron": 0.5}]
)
def test_a_budget_of_each_kind_names_all_kinds_with_their_shares(setting):
    with pytest.raises(mhprobe.UserError, match=r"head and neuron, .* with its value, got"):
        targets_of(setting, mixed(4, 4), {})
