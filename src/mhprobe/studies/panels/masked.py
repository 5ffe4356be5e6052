"""What masking curves switch off, and how alike those heads are among themselves.

Shapes: A heads, S steps.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from mhprobe.masking.trace import Curve, first
from mhprobe.report import tables
from mhprobe.report.figures import groups_of_pairs
from mhprobe.report.figures import masked_at_each_step as drawing
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material

PHASES = ("before", "at", "kept")


def masked_at_each_step(material: Material) -> dict[str, Result]:
    """A small grid of heads per step and curve; of a random curve its first repeat."""
    masks = {curve.name: curve.traces[0].mask for curve in reported(material)}
    return {"masked": Result(figure=drawing.draw(material.layout, masks))}


def among_masked(material: Material) -> dict[str, Result]:
    """Similarity of the heads masked before the drop: among themselves, to those at the drop, and to those kept.

    The drop is the first step at which accuracy is significantly lower, as in masking/redundant_or_inert.py. Only
    pairs that the measure compared count (by default heads of one block). Table: curve, measure, group_a, group_b,
    pairs, mean, low, high (95 % of the pairs), null.
    """
    rows: list[dict[str, Any]] = []
    for curve in reported(material):
        groups = phases(curve)
        for name, columns in material.columns.items():
            rows += [
                {"curve": curve.name, "measure": name, **row}
                for a, b in itertools.combinations_with_replacement(PHASES, 2)
                if (row := _between(columns["value"], columns.get("null"), groups, a, b)) is not None
            ]
    if not rows:
        return {}
    return {"likeness": Result(tables.from_rows(rows), groups_of_pairs.draw(rows))}


def phases(curve: Curve) -> dict[str, Tensor]:
    """(A,) bool each: heads masked before the drop, at it, and those that are still there after it."""
    (trace,) = curve.traces
    drop = first(curve.falls if curve.worse is None else curve.worse)
    before = trace.mask[min(drop, len(trace.mask)) - 1]
    at = trace.mask[drop] & ~before if drop < len(trace.mask) else torch.zeros_like(before)
    return {"before": before, "at": at, "kept": ~before & ~at}


def _between(value: Tensor, null: Tensor | None, groups: dict[str, Tensor], a: str, b: str) -> dict[str, Any] | None:
    """What the compared pairs of a head of one group and another head of the other give; None without pairs."""
    inside = groups[a][:, None] & groups[b] | groups[b][:, None] & groups[a]
    known = (inside & value.isfinite()).triu(1)
    found = value[known].double()
    if not len(found):
        return None
    low, high = torch.quantile(found, torch.tensor([0.025, 0.975], dtype=found.dtype)).tolist()
    level = "" if null is None else null[known].double().mean().item()
    numbers = {"pairs": len(found), "mean": found.mean().item(), "low": low, "high": high, "null": level}
    return {"group_a": a, "group_b": b, **numbers}


def reported(material: Material) -> list[Curve]:
    """The curves on the split to report, those of one path: each name once."""
    last = {curve.name: curve for curve in material.curves}
    return [curve for curve in last.values() if len(curve.traces) == 1]
