"""Heads that masking curves switch off, and the similarity among them.

Shapes: A heads, S steps, P pairs, D draws.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from mhprobe.masking.parts.trace import Curve, first
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import masking as drawing
from mhprobe.report.figures import pairs
from mhprobe.report.result import Result
from mhprobe.stats.significance import holm


def masked_at_each_step(material: Material, heads_per_step: int = 1) -> dict[str, Result]:
    """A small grid of heads per step and curve, and of heads drawn at random.

    heads_per_step: k; so many random heads of each layer go at a step, as in the first of the ``random`` curves, which
    need not be scored for this.
    """
    masks = {curve.name: curve.traces[0].mask for curve in reported(material)}
    order = Random(repeats=1, per_layer=True, heads_per_step=heads_per_step)
    (drawn,) = order.paths(make_units("head", material.layout), material.layout)
    name = f"{heads_per_step} random\nof each layer"
    return {"masked": Result(figure=drawing.masked_at_each_step(material.layout, {**masks, name: drawn.masks()}))}


def among_masked(material: Material, draws: int = 2000) -> dict[str, Result]:
    """Similarity of the heads masked before the drop: among themselves, to those at the drop, and to those kept.

    The drop is the first step at which accuracy is significantly lower, as in masking/redundant_or_inert.py. Only
    pairs that the measure compared count (by default heads of one block).

    Layers differ in how alike their heads are, and in when their heads go. So what is tested is how far pairs stand
    above the mean of all pairs of their own two layers. Chance deals the same numbers of heads out anew within each
    layer, ``draws`` times.

    Table: curve, measure, group_a, group_b, pairs, mean, null (of the measure), above, chance_low, chance_high (95 %
    of the draws), p (two-sided), p_holm (over the rows of a curve and a measure).
    """
    rows: list[dict[str, Any]] = []
    site = torch.tensor([number for number, _, _ in material.layout])
    for curve in reported(material):
        groups = phases(curve)
        for name in material.names:
            columns = material.columns(name)
            found = likeness(columns["value"], columns.get("null"), groups, site, draws, material.seed)
            rows += [{"curve": curve.name, "measure": name, **row} for row in found]
    if not rows:
        return {}
    return {"likeness": Result(tables.from_rows(rows), pairs.groups_of_pairs(rows))}


def phases(curve: Curve) -> dict[str, Tensor]:
    """(A,) bool each: heads masked before the drop, at it, and those that are still there after it."""
    (trace,) = curve.traces
    drop = first(curve.falls if curve.worse is None else curve.worse)
    before = trace.mask[min(drop, len(trace.mask)) - 1]
    at = trace.mask[drop] & ~before if drop < len(trace.mask) else torch.zeros_like(before)
    return {"before": before, "at": at, "kept": ~before & ~at}


def likeness(
    value: Tensor, null: Tensor | None, groups: dict[str, Tensor], site: Tensor, draws: int, seed: int
) -> list[dict[str, Any]]:
    """Rows for every two groups that have compared pairs; ``among_masked`` says what is in them.

    value, null: (A, A), NaN where two heads were not compared. groups: (A,) bool each, a head in one of them.
    site: (A,) the layer of each head, ascending.
    """
    first_P, second_P = value.isfinite().triu(1).nonzero().unbind(1)
    if not len(first_P):
        return []
    value_P = value[first_P, second_P].double()
    cell_P = site[first_P] * (int(site.max()) + 1) + site[second_P]
    means = torch.bincount(cell_P, value_P) / torch.bincount(cell_P).clamp(min=1)
    above_P = value_P - means[cell_P]

    label_A = torch.stack([groups[name] for name in groups]).int().argmax(0)
    generator = torch.Generator().manual_seed(seed)
    dealt_DA = label_A[(site + torch.rand(draws, len(site), generator=generator, dtype=torch.float64)).argsort(1)]

    def kind(label: Tensor) -> Tensor:
        one, other = label[..., first_P], label[..., second_P]
        return torch.minimum(one, other) * len(groups) + torch.maximum(one, other)

    kind_P, kind_DP, rows = kind(label_A), kind(dealt_DA), []
    for (a, name_a), (b, name_b) in itertools.combinations_with_replacement(enumerate(groups), 2):
        here = kind_P == a * len(groups) + b
        if not here.any():
            continue
        above = above_P[here].mean()
        drawn_D = (above_P * (kind_DP == a * len(groups) + b)).sum(1) / here.sum()  # as many pairs in every draw
        low, high = torch.quantile(drawn_D, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        rows.append(
            {
                **{"group_a": name_a, "group_b": name_b, "pairs": int(here.sum()), "mean": value_P[here].mean().item()},
                "null": "" if null is None else null[first_P, second_P][here].double().mean().item(),
                **{"above": above.item(), "chance_low": low, "chance_high": high},
                "p": (1 + (drawn_D.abs() >= above.abs() - 1e-12).sum().item()) / (1 + draws),
            }
        )
    adjusted = holm(torch.tensor([row["p"] for row in rows], dtype=torch.float64)).tolist()
    return [{**row, "p_holm": p} for row, p in zip(rows, adjusted, strict=True)]


def reported(material: Material) -> list[Curve]:
    """The curves on the split to report, those of one path: each name once."""
    last = {curve.name: curve for curve in material.curves()}
    return [curve for curve in last.values() if len(curve.traces) == 1]
