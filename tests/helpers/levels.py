"""Simulations of every p value and interval: how often does a p reject its null, and an interval hold the truth?

Every simulation draws all that a number stands on anew: images, donors, folds, null images, heads.
``python tests/helpers/levels.py`` prints docs/levels.md and writes its table;
``tests/library/contracts/test_levels.py`` takes fewer draws.

Shapes: N draws, B images, T tokens, A heads of all sites, C classes.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import coverage_by_images
from curves import curve, masked_head
from mhprobe.framework.run.members import members
from mhprobe.heads import Direct, Donors, HeadBatch, HeadLayout, HeadSite, Need, Patched, Patching
from mhprobe.lab.papers.panels import clusters
from mhprobe.lab.papers.panels.maps import auc_interval
from mhprobe.lab.papers.panels.masking import likeness
from mhprobe.masking.redundant_or_inert import Likeness, Similarities, control, masked_heads
from mhprobe.measures import (
    CCA,
    CKA,
    PWCCA,
    SVCCA,
    AblationDelta,
    ActivationPatching,
    AttributionPatching,
    Interaction,
    JSDistance,
    LogitAttribution,
    OneHead,
    Position,
    Procrustes,
)
from mhprobe.measures.base import Measure
from mhprobe.stats.agreement import pearson, spearman, spearman_interval
from mhprobe.stats.intervals import SIZE, bootstrap, of_mean, of_skewed_mean
from mhprobe.stats.significance import (
    benjamini_hochberg,
    beyond,
    holm,
    mcnemar,
    paired,
    paired_difference,
    t_interval,
    t_quantile,
    two_sided,
    wilson,
)

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "library" / "contracts")]

SITE = HeadSite("a", 0, 0, 5, 3, grid=(2, 3), pixels=(8.0, 8.0))
LAYOUT = HeadLayout((SITE,))
HEADS, IMAGES = 5, 150
LEVEL = 0.05


class Interval(NamedTuple):
    """Numbers and their ends, NaN where there is none.

    Nobody knows the truth: it is the mean over all draws.
    """

    value: Tensor
    low: Tensor
    high: Tensor


class Simulation(NamedTuple):
    """draw: from a seed, (n,) or () bool per promise: rejected, or the truth inside; or an Interval.

    Equal seeds give equal draws.

    promises: what ``draw`` gives, by name, and whether it is a "p" (rejected in 5 % of the draws),
    an "interval" (the truth is inside in 95 %), or "at most": a p that rejects in 5 % or less,
    because counts are whole numbers or because it guards against any of many; or "at least": an
    interval that holds the truth in 95 % or more. laws: the functions whose promise it is, beside
    the measures' columns.
    few: draws in a quick test; 0 where one draw takes too long for it.
    """

    draw: Callable[[int], dict[str, Tensor | Interval]]
    promises: dict[str, str]
    laws: tuple[Callable, ...] = ()
    few: int = 150


SIMULATIONS: list[Simulation] = []


def simulation(laws: tuple[Callable, ...] = (), few: int = 150, **promises: str) -> Callable:
    """Add a simulation. Names of promises have "__" for the dot between measure and column."""

    def add(draw: Callable[[int], dict[str, Tensor]]) -> Callable[[int], dict[str, Tensor]]:
        named = {name.replace("__", "."): kind for name, kind in promises.items()}
        SIMULATIONS.append(Simulation(draw, named, laws, few))
        return draw

    return add


def normals(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def batch(images: int, seed: int, **fields) -> HeadBatch:
    """A batch of what a test says. Pixels are only for what images are drawn by."""
    pixels = torch.randn(images, 1, 2, 2, generator=torch.Generator().manual_seed(seed + 10**6))
    ready = {
        "z": (),
        "logits": torch.zeros(images, 2),
        "valid": torch.ones(images).bool(),
        "images": pixels,
    }
    return HeadBatch(**{**ready, **fields})


def columns_of(measure: Measure, batch: HeadBatch) -> dict[str, Tensor]:
    measure.update(batch)
    return measure.columns()


# Similarities of heads that have nothing to do with each other


def unrelated_outputs(seed: int) -> Tensor:
    """(B, T, A, D) of heads that share nothing, each with its own spectrum, place and likeness of an image's tokens."""
    normal, tokens, width = normals(seed), 6, SITE.head_dim
    heads = []
    for head in range(HEADS):
        of_image = torch.rand((), generator=torch.Generator().manual_seed(100 * seed + head))
        image, token, place = (
            normal(IMAGES, 1, width),
            normal(IMAGES, tokens, width),
            0.3 * normal(1, tokens, width),
        )
        spectrum = torch.arange(1, width + 1) ** -(3.0 * of_image)
        turn = torch.linalg.qr(normal(width, width)).Q
        heads.append(
            (of_image.sqrt() * image + (1 - of_image).sqrt() * token + place) * spectrum @ turn
        )
    return torch.stack(heads, 2)


def alike(similarity: Similarities) -> tuple[Tensor, Tensor]:
    """(A,) whether p < .05 for each head, and () whether the list that is adjusted over heads names any."""
    # heads 0 and 1 go before the drop, then all others: all are compared with those kept just
    # before it
    mask = torch.arange(HEADS) < torch.tensor([0, 2, 3, HEADS])[:, None]
    one = curve("a", heads=[0, 2, 3, HEADS], accuracy=[0.9, 0.9, 0.5, 0.4], p=[1.0, 1.0, 0.0, 0.0])
    traces = (dataclasses.replace(one.traces[0], mask=mask),)
    heads = masked_heads(
        dataclasses.replace(one, traces=traces), {"any": similarity}, torch.ones(HEADS)
    )
    p = torch.tensor([head.likeness["any"].p for head in heads])
    return p < LEVEL, torch.tensor(any(head.alike for head in heads))


def _similar(kind: Callable[..., Measure], name: str) -> None:
    def draw(seed: int) -> dict[str, Tensor]:
        measure = kind(LAYOUT, seed=seed, interval=False)  # of which this law asks nothing
        got = columns_of(measure, batch(IMAGES, seed, z=(unrelated_outputs(seed),)))
        single, any_of_them = alike(Similarities(got["value"], got["null"], got["null_draws"]))
        return {f"p_{name}": single, f"p of a list by {name}": any_of_them}

    promises = {f"p_{name}": "at most", f"p of a list by {name}": "at most"}  # steps of 1 / 51
    SIMULATIONS.append(Simulation(draw, promises, (beyond, benjamini_hochberg)))


for _kind, _name in (
    (SVCCA, "svcca"),
    (CKA, "cka"),
    (Procrustes, "procrustes"),
    (CCA, "cca"),
    (PWCCA, "pwcca"),
):
    _similar(_kind, _name)


@simulation(
    (beyond,),
    few=40,
    **{"p_js_distance": "at most", "p of a list by js_distance": "at most", "js_distance__p": "p"},
)
def _(seed: int) -> dict[str, Tensor]:
    """Heads of two layers, whose attention differs from image to image in how sharp it is."""
    layout = HeadLayout(
        tuple(dataclasses.replace(SITE, name=name, block=k) for k, name in enumerate("ab"))
    )
    normal = normals(seed)
    attn = [
        (
            normal(1, 1, HEADS, 6, 6)
            + 2 * normal(40, 1, HEADS, 1, 1).exp() * normal(40, 1, HEADS, 6, 6)
        ).softmax(-1)
        for _ in range(2)
    ]
    got = columns_of(
        JSDistance(layout, pairs="all", permutations=59, seed=seed),
        batch(40, seed, attn=tuple(attn)),
    )
    part = slice(HEADS)
    single, any_of_them = alike(
        Similarities(*(1 - got[name][part, part] for name in ("value", "null", "null_draws")))
    )
    return {
        "p_js_distance": single,
        "p of a list by js_distance": any_of_them,
        "js_distance.p": got["p"] <= LEVEL,
    }


# Masked heads


def in_exchange(normal: Callable[..., Tensor], masks: int) -> tuple[Tensor, Tensor]:
    """(B, C) logits and (M, B, C) logits under masks that change them, and do neither good nor harm."""
    shared = 2 * normal(IMAGES, 3)
    return shared + normal(IMAGES, 3), shared + normal(masks, IMAGES, 3)


@simulation(
    (mcnemar, holm),
    ablation_delta__p="at most",
    ablation_delta__p_holm="at most",
    ablation_delta__class_p_holm="at most",
    one_head__p="at most",
)
def _(seed: int) -> dict[str, Tensor]:
    normal, labels = normals(seed), torch.arange(IMAGES) % 3
    found = {}
    for name, measure in (("ablation_delta", AblationDelta(LAYOUT)), ("one_head", OneHead(LAYOUT))):
        logits, without = in_exchange(normal, HEADS)
        got = columns_of(
            measure,
            batch(IMAGES, seed, logits=logits, labels=labels, ablated={measure.ablation: without}),
        )
        found[f"{name}.p"] = got["p"] < LEVEL
        for column in ("p_holm", "class_p_holm"):
            if column in got:
                found[f"{name}.{column}"] = got[column].nan_to_num(1).min() < LEVEL
    return found


@simulation((two_sided, holm), interaction__p_holm="at most")
def _(seed: int) -> dict[str, Tensor]:
    """Losses under two masks are the sum of those under each, and noise."""
    normal, images = normals(seed), 40
    measure = Interaction(LAYOUT, heads=range(4))
    whole, alone = 5 + normal(images).square(), normal(4, images)
    both = torch.stack(
        [alone[a] + alone[b] + normal(images) for a, b in itertools.combinations(range(4), 2)]
    )
    losses = (whole + torch.cat([alone, both])).clamp(min=1e-3)

    def logits(loss: Tensor) -> Tensor:
        """Of two classes, the first of which is right: the loss is softplus of the other's lead."""
        return torch.stack([torch.zeros_like(loss), loss.expm1().log()], -1)

    labels = torch.zeros(images, dtype=torch.long)
    made = batch(
        images,
        seed,
        logits=logits(whole),
        labels=labels,
        ablated={measure.ablation: logits(losses)},
    )
    return {
        "interaction.p_holm": torch.tensor(
            float(columns_of(measure, made)["p_holm"].nan_to_num(1).min()) < LEVEL
        )
    }


@simulation((two_sided, holm), logit_attribution__own_p="at most")
def _(seed: int) -> dict[str, Tensor]:
    """Heads that write into all logits alike, ten images a class."""
    normal = normals(seed)
    parts = [normal(30, count, 3) for count in (HEADS, 1, 1, 1, 1)]
    made = batch(
        30, seed, logits=torch.zeros(30, 3), labels=torch.arange(30) % 3, direct=Direct(*parts)
    )
    return {
        "logit_attribution.own_p": columns_of(LogitAttribution(LAYOUT), made)["own_p"].min() < LEVEL
    }


def _patched(kind: type[ActivationPatching]) -> None:
    exact = kind is ActivationPatching
    name, estimate = ("activation_patching", "exact") if exact else ("attribution_patching", "atp")

    def draw(seed: int) -> dict[str, Tensor]:
        """A donor brings as much as an image does, and serves five of them.

        Heads bring nothing, but the last half.
        """
        normal, donors = normals(seed), 30
        measure = kind(LAYOUT, donors=donors, estimates=[estimate])
        measure.pool.add(
            torch.arange(donors), [torch.zeros(donors, 3, 2, 2), torch.arange(donors) % 2]
        )
        measure.end_select()
        (need,) = measure.needs
        assert isinstance(need.donors, Donors)
        donor = torch.randint(donors, (IMAGES,), generator=torch.Generator().manual_seed(seed))
        clean, corrupt = 4 + normal(IMAGES), normal(IMAGES) + normal(donors)[donor]
        effect = normal(IMAGES, HEADS) + normal(donors, HEADS)[donor]
        effect[:, -1] += 0.5 * (clean - corrupt)
        there = torch.ones(IMAGES, dtype=torch.bool)
        made = batch(
            IMAGES, seed, patched={need: Patched(clean, corrupt, there, {estimate: effect}, donor)}
        )
        got = columns_of(measure, made)
        inside = (got["low"] <= TRUE_SHARES) & (got["high"] >= TRUE_SHARES)
        return {f"{name}.p_holm": got["p_holm"][:-1].min() < LEVEL, f"{name}.low": inside}

    promises = {f"{name}.p_holm": "at most", f"{name}.low": "interval"}
    SIMULATIONS.append(Simulation(draw, promises, (t_quantile, two_sided)))


TRUE_SHARES = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5])
for _kind_of in (ActivationPatching, AttributionPatching):
    _patched(_kind_of)


# Every interval column of every measure


LOW = re.compile(r"(?:(?!spearman)(.+)_)?low")  # a correlation's interval is over heads, not images


@functools.lru_cache(maxsize=40)  # as many draws as a quick test takes, for all measures
def sharing(seed: int, needs: frozenset[Need]) -> HeadBatch:
    """Eighty images of random heads that share something: of heads that share nothing all similarity is chance.

    needs: those that are no words, which are in every batch.
    """
    from test_intervals import alike
    from test_measures import random_batch

    return alike(random_batch(range(80 * seed + 10_000, 80 * seed + 10_080), needs=needs))


def _of_columns(measured: str) -> None:
    from test_measures import LAYOUT, build, selected

    measure = build(measured, LAYOUT)
    if measure.no_interval or any(isinstance(need, Patching) for need in measure.needs):
        return  # patching has its own law above, with donors

    def draw(seed: int) -> dict[str, Tensor | Interval]:
        fed = selected(build(measured, LAYOUT))
        columns = columns_of(
            fed, sharing(seed, frozenset(need for need in fed.needs if not isinstance(need, str)))
        )
        found = {}
        for name in columns:
            if end := LOW.fullmatch(name):
                ends = (end[1] or "value", name, name.removesuffix("low") + "high")
                found[f"{measured}.{name}"] = Interval(*(columns[each].double() for each in ends))
        return found

    few = 0 if "embedding" in measure.also else 40  # points in a plane take most of a second
    # random heads have no favourite offset, and the largest of equal shares varies less than each;
    # below they have one
    kind = "at least" if measured == "position" else "interval"
    SIMULATIONS.append(Simulation(draw, {f"{measured}.low": kind}, (), few))


for _measured in members("measure"):
    _of_columns(_measured)


@simulation((), **{"position.low of a favourite": "interval"})
def _(seed: int) -> dict[str, Tensor]:
    """Heads that look at themselves more or less often, from image to image."""
    from test_intervals import looking_at

    grid, random = (2, 3), torch.Generator().manual_seed(seed)
    often = torch.rand(80, 10, generator=random, dtype=torch.float64) ** torch.tensor(
        [1 / 9, 1.0]
    ).repeat(5)
    layout = HeadLayout((dataclasses.replace(SITE, num_heads=10, grid=grid),))
    got = columns_of(Position(layout), batch(80, seed, attn=(looking_at(often, grid, seed),)))
    truth = torch.tensor([0.9, 0.5]).repeat(5).double()
    truth = (
        truth + (1 - truth) / 6
    )  # else they look at the first token, which looks at itself anyway
    return {"position.low of a favourite": (got["low"] <= truth) & (truth <= got["high"])}


# What tables of curves, papers and runs are made of


@simulation(
    (paired, paired_difference, mcnemar, wilson),
    paired__p="at most",
    paired__low="interval",
    wilson="interval",
)
def _(seed: int) -> dict[str, Tensor]:
    """Two networks of accuracy .8 on the same images, of which many are right or wrong in both."""
    draw = torch.rand(3, IMAGES, generator=torch.Generator().manual_seed(seed))
    alike = draw[2] < 0.5
    one, other = draw[0] < 0.8, torch.where(alike, draw[0], draw[1]) < 0.8
    got = paired(one, other)
    low, high = wilson(one.sum()[None], torch.tensor([IMAGES]))
    return {
        "paired.p": torch.tensor(got.p < LEVEL),
        "paired.low": torch.tensor(got.low <= 0 <= got.high),
        "wilson": (low <= 0.8) & (high >= 0.8),
    }


@simulation((bootstrap, t_interval), **{"bootstrap": "interval", "t_interval": "interval"})
def _(seed: int) -> dict[str, Tensor]:
    """Losses of an exponential law, on 150 images; accuracies of five random orders."""
    normal = normals(seed)
    losses = (normal(2, IMAGES).square().sum(0) / 2)[None]
    low, high = bootstrap(losses, resamples=400, seed=seed)
    _, t_low, t_high = t_interval(normal(5, 3))
    return {"bootstrap": (low <= 1) & (high >= 1), "t_interval": (t_low <= 0) & (t_high >= 0)}


@simulation((of_mean, of_skewed_mean), of_mean="interval", of_skewed_mean="interval")
def _(seed: int) -> dict[str, Tensor]:
    """Losses of an exponential law, on 150 images."""
    losses = normals(seed)(2, IMAGES).square().sum(0) / 2
    sums, images = [losses.pow(power).sum() for power in (1, 2, 3)], torch.tensor(IMAGES)
    got = {"of_mean": of_mean(*sums[:2], images, SIZE)}
    got["of_skewed_mean"] = of_skewed_mean(*sums, images, SIZE)
    return {name: (ends["low"] <= 1) & (ends["high"] >= 1) for name, ends in got.items()}


@simulation(
    (pearson, spearman_interval), **{"pearson": "interval", "spearman_interval": "interval"}
)
def _(seed: int) -> dict[str, Tensor]:
    """Two measures of 72 heads whose values are normal, correlated by .6."""
    normal, r = normals(seed), 0.6
    x = normal(72)
    y = r * x + (1 - r**2) ** 0.5 * normal(72)
    got = pearson(x, y)
    low, high = spearman_interval(spearman(x, y), 72)
    rho = 6 / math.pi * math.asin(r / 2)  # of ranks, for normal values
    return {
        "pearson": torch.tensor(got.low <= r <= got.high),
        "spearman_interval": torch.tensor(low <= rho <= high),
    }


@simulation(
    (likeness,), **{"similarity_of_masked__p": "at most", "similarity_of_masked__p_holm": "at most"}
)
def _(seed: int) -> dict[str, Tensor]:
    """Heads that are masked at random, some more alike to all others than others are."""
    normal, site = normals(seed), torch.arange(24) // 6
    common = normal(24)
    value = common[:, None] + common + normal(24, 24)
    value = (value + value.mT).where(site[:, None] == site, torch.nan)
    order = torch.rand(24, generator=torch.Generator().manual_seed(seed)).argsort().argsort()
    groups = {"before": order < 8, "at": order == 8, "kept": order > 8}
    rows = likeness(value, None, groups, site, 199, seed)
    p = torch.tensor([row["p"] for row in rows])
    return {
        "similarity_of_masked.p": p[[0, -1]] <= LEVEL,
        "similarity_of_masked.p_holm": torch.tensor(min(row["p_holm"] for row in rows) <= LEVEL),
    }


@simulation((control,), control="at most")
def _(seed: int) -> dict[str, Tensor]:
    standing = torch.rand(24, generator=torch.Generator().manual_seed(seed)).tolist()
    heads = [
        masked_head("a", "before" if n < 12 else "after", Likeness(0, s, 0.0), 1.0)
        for n, s in enumerate(standing)
    ]
    return {"control": torch.tensor(control(heads) < LEVEL)}


@simulation((auc_interval,), auc__low="interval", auc__p="p")
def _(seed: int) -> dict[str, Tensor]:
    """Heat of 60 images that are right and 40 that are wrong: of one law, and moved apart by one deviation."""
    from scipy.stats import mannwhitneyu

    normal = normals(seed)
    hot, cold = normal(60), normal(40)
    truth = 0.5 * math.erfc(-1 / 2)  # that a value is above one whose mean is a deviation lower
    auc = float((hot[:, None] + 1 > cold).double().mean())
    low, high = auc_interval(auc, 60, 40)
    p = float(mannwhitneyu(hot.tolist(), cold.tolist()).pvalue)
    return {"auc.low": torch.tensor(bool(low <= truth <= high)), "auc.p": torch.tensor(p < LEVEL)}


def cloud(normal: Callable[..., Tensor]) -> Tensor:
    """(A, A) distances of twelve heads in one cloud."""
    points = normal(12, 3) * torch.tensor([3.0, 2.0, 1.0])
    return torch.cdist(points, points)


@simulation((clusters.best_clusters,), few=0, clusters__p="at most")
def _(seed: int) -> dict[str, Tensor]:
    return {
        "clusters.p": torch.tensor(
            clusters.best_clusters(cloud(normals(seed)), 19, seed).p <= LEVEL
        )
    }


@simulation((clusters.alike,), few=100, functions__p="p")
def _(seed: int) -> dict[str, Tensor]:
    """Functions that are given to the heads at random."""
    normal = normals(seed)
    distance, names = cloud(normal), [f"{int(number) % 3}" for number in normal(12).argsort()]
    return {
        "functions.p": torch.tensor(clusters.alike(distance, names, 19, seed + 10**6)[1] <= LEVEL)
    }


# How they are counted


class Share(NamedTuple):
    """Rejections, or intervals that hold the truth.

    draws: of the simulation; numbers: in all of them.
    """

    promise: str
    kind: str
    share: float
    draws: int
    numbers: int
    error: float

    @property
    def kept(self) -> bool:
        """Within three standard errors of the promise; "at most" may stay below, "at least" above."""
        promised = 0.95 if self.kind in ("interval", "at least") else LEVEL
        independent = (
            self.numbers if self.error else self.draws
        )  # all alike, they may be one number
        reach = 3 * max(self.error, (LEVEL * (1 - LEVEL) / independent) ** 0.5)
        below, above = promised - self.share, self.share - promised
        return (
            above
            if self.kind == "at most"
            else below
            if self.kind == "at least"
            else max(below, above)
        ) < reach


def shares(simulation: Simulation, draws: int, first: int = 0) -> list[Share]:
    """One per promise.

    The numbers of a draw are not independent, draws are: the error is over draws.
    """
    found: dict[str, list[Tensor | Interval]] = {name: [] for name in simulation.promises}
    for seed in range(first, first + draws):
        for name, drawn in simulation.draw(seed).items():
            found.setdefault(name, []).append(drawn)
    rows = []
    for name, given in found.items():
        hits = (
            _inside(given)
            if isinstance(given[0], Interval)
            else [part.double().flatten() for part in given]
        )
        if not (numbers := sum(len(part) for part in hits)):
            continue  # of images so small there are no such numbers
        of_draw = torch.stack([part.mean() for part in hits if len(part)])
        error = float(of_draw.std() / len(of_draw) ** 0.5)
        kind = simulation.promises.get(name, "interval")
        rows.append(Share(name, kind, float(of_draw.mean()), draws, numbers, error))
    return rows


def _inside(given: list[Interval]) -> list[Tensor]:
    """Whether the mean over draws is inside, of the numbers that differ from draw to draw and have an interval."""
    value = torch.stack([each.value for each in given])
    known = value.isfinite()
    truth = value.nanmean(0)
    varied = (value.where(known, truth) - truth).abs().amax(0) > 1e-9
    return [
        ((one.low <= truth) & (truth <= one.high)).double()[varied & one.low.isfinite()]
        for one in given
    ]


PAGE = """# Are p values and intervals right?

If nothing is there, a p value should be below 0.05 in 5 % of the cases. A 95 % interval should contain the truth in
95 %. `make levels` simulates every p and every interval of the tables, with at least {draws} draws of each. Every
draw takes new images, donors, folds, null images and heads. `tests/library/contracts/test_levels.py` repeats this with
fewer draws, and fails for a p or an interval without a simulation.

| promise | p values or intervals | lowest share | highest share |
|---|---|---|---|
{summary}

[All of them](tables/levels.csv), with standard errors. Tests of counts and tests that guard a whole list may reject
in less than 5 %.

- `p_svcca` and the like test a head's largest similarity to the [kept heads](masking.md#redundant-or-inert), here
  between five heads that share nothing, on 150 images. "Of a list" is the share of networks in which any of the five
  is named.
- "measure: interval" means the columns `low` and `high` of that measure, on 80 images of random heads and layers that
  share something. The truth is the mean over all draws.
- The interval is too wide where similarity is chance alone (98 to 99 %), and for the position of a head without a
  favourite offset.
- Heads here are 3 wide. With heads of width 48 and 600 images p_svcca rejected in 5.0 % (standard error 1.9) and
  p_procrustes in 4.0 % (1.5) of 60 draws.

## Coverage by the number of images

Real heads have longer tails than normal numbers: among 1,000 images a few decide a mean of squares. Below, images are
drawn anew from 1,000 test images, whose mean is the truth, and the interval of each head is asked whether it holds
it: in how many per cent, mean over heads and in brackets the worst head. "Lognormal slopes" are a law with tails still
longer; "unequal images" have e^N(0, 1) times as many tokens.

{coverage}

[With standard errors](tables/coverage.csv). Intervals of gate importance and fisher follow the skewness of the images
(Hall, 1992, JRSS B 54:221). "Logarithmic scale" are the same heads by Student's law on that scale, as it was before.

- **fisher needs 300 images**, better 1,000. With fewer its intervals are too narrow, and those of the worst heads far
  too narrow: the images that decide them are not among the drawn ones.
- The interval of activation norm is right for images of equal size. Where sizes differ that much, take 300 or more.
"""


PROMISED = {"p": "5 %", "at most": "at most 5 %", "interval": "95 %", "at least": "at least 95 %"}
TABLE = Path(__file__).parents[2] / "docs" / "tables" / "levels.csv"


def summary(rows: list[dict[str, str]]) -> str:
    """Rows of the page: of each promise how many there are, and which of them lie lowest and highest."""
    lines = []
    for promised in dict.fromkeys(row["of"] for row in rows):
        shares_of = sorted(
            (float(row["share_percent"]), row["promise"]) for row in rows if row["of"] == promised
        )
        ends = (f"{share:.1f} % ({name})" for share, name in (shares_of[0], shares_of[-1]))
        lines.append(f"| {promised} | {len(shares_of)} | {' | '.join(ends)} |")
    return "\n".join(lines)


def main(draws: int, *words: str) -> int:
    """Write the table and print the page; for words only the rows of simulations with one of them in a promise."""
    chosen = [
        law
        for law in SIMULATIONS
        if not words or any(word in name for word in words for name in law.promises)
    ]
    rows, broken = [], 0
    for simulation in chosen:
        for row in shares(simulation, draws, first=10_000):
            broken += not row.kept
            rows.append(
                {
                    "promise": row.promise.replace(".low", ": interval"),
                    "of": PROMISED[row.kind],
                    "share_percent": f"{100 * row.share:.1f}",
                    "standard_error": f"{100 * row.error:.1f}",
                    "draws": str(row.draws),
                    "kept": str(int(row.kept)),
                }
            )
    if words:
        print(*(" ".join(row.values()) for row in rows), sep="\n")
    else:
        with open(TABLE, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
        print(
            PAGE.format(
                draws=draws, summary=summary(rows), coverage=coverage_by_images.main(2 * draws)
            ),
            end="",
        )
    return broken


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, *sys.argv[2:]))
