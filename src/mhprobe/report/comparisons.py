"""Comparisons of results: measures against each other, on two data sets, and along training.

Shapes: A heads, P points in training.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import runs, training
from mhprobe.report.report import Result
from mhprobe.report.tables import Table, per_head
from mhprobe.stats.agreement import agreement, pearson, spearman


class Point(NamedTuple):
    """One look at the heads during training. values: A numbers."""

    epoch: int
    step: int
    values: list[float]


def agreement_of(values: Mapping[str, Tensor], control: Mapping[str, Tensor], k: int) -> Result:
    """Every two measures' (A,) values compared; control: the same of a random initialisation, or {}."""
    if len(values) < 2:
        return Result()
    found = agreement(values, k)
    other = agreement({name: control[name] for name in found.names}, k) if set(values) <= set(control) else None
    columns = ["measure_a", "measure_b", "spearman", "spearman_low", "spearman_high", "overlap", "chance", "k"]
    columns += ["spearman_random_init", "overlap_random_init"] if other is not None else []
    rows = []
    for i, a in enumerate(found.names):
        for j, b in enumerate(found.names[:i]):
            matrices = [found.spearman, found.low, found.high, found.overlap, found.chance]
            row = [b, a, *(matrix[i, j].item() for matrix in matrices), found.k]
            rows.append(row + ([] if other is None else [other.spearman[i, j].item(), other.overlap[i, j].item()]))
    label = "rank correlation of two measures over heads"
    return Result(Table(columns, rows), runs.agreement(found, other), label=label, drawn="agreement")


def two_data_sets(
    layout: HeadLayout, first: str, second: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Result:
    """Correlate every measure's (A,) values on two data sets over heads."""
    names = [name for name in a if name in b]
    if not names:
        return Result()
    panels = [(name, a[name], b[name], pearson(a[name], b[name])) for name in names]
    rows = []
    for name, x, y, r in panels:
        known = x.isfinite() & y.isfinite()
        rows.append([name, r.r, r.low, r.high, spearman(x[known], y[known]), r.heads])
    table = Table(["measure", "pearson", "low", "high", "spearman", "heads"], rows)
    return Result(table, runs.scatter(layout, panels, first, second), drawn="scatter")


def history(layout: HeadLayout, label: str, points: Sequence[Point], drawn: bool) -> Result:
    """A measure along training: one row per point and head; drawn: also the figure."""
    heads = per_head(layout, {})
    rows = [
        [point.epoch, point.step, *head, value]
        for point in points
        for head, value in zip(heads.rows, point.values, strict=True)
    ]
    table = Table(["epoch", "step", *heads.columns, "value"], rows, "history")
    if not drawn:
        return Result(table, label=label)
    values = torch.tensor([point.values for point in points], dtype=torch.float64)
    figure = training.history(layout, [point.step for point in points], values, label)
    return Result(table, figure, label=label, drawn="history")
