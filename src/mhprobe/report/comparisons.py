"""What several results say together: measures against each other, on two data sets, and along training.

Shapes: A heads, P points in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.report.figures import agreement as agreement_figure
from mhprobe.report.figures import history as history_figure
from mhprobe.report.figures import scatter
from mhprobe.report.report import Report
from mhprobe.report.tables import Table, per_head
from mhprobe.stats.agreement import agreement, pearson, spearman


class Point(NamedTuple):
    """One look at the heads during training. values: A numbers."""

    epoch: int
    step: int
    values: list[float]


def add_agreement(report: Report, values: Mapping[str, Tensor], control: Mapping[str, Tensor], k: int) -> None:
    """``agreement``: every two measures' (A,) values compared; control: the same of a random initialisation, or {}."""
    if len(values) < 2:
        return
    found = agreement(values, k)
    other = agreement({name: control[name] for name in found.names}, k) if set(values) <= set(control) else None
    columns = ["measure_a", "measure_b", "spearman", "overlap", "chance", "k"]
    columns += ["spearman_random_init", "overlap_random_init"] if other is not None else []
    rows = []
    for i, a in enumerate(found.names):
        for j, b in enumerate(found.names[:i]):
            matrices = [found.spearman, found.overlap, found.chance]
            row = [b, a, *(matrix[i, j].item() for matrix in matrices), found.k]
            rows.append(row + ([] if other is None else [other.spearman[i, j].item(), other.overlap[i, j].item()]))
    report.add_table("agreement", Table(columns, rows))
    report.add_figure("agreement", agreement_figure.draw(found, other))


def add_two_data_sets(
    report: Report, first: str, second: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> None:
    """``<second>_against_<first>``: how every measure's (A,) values on two data sets correlate over heads."""
    names = [name for name in a if name in b]
    if not names:
        return
    panels = [(name, a[name], b[name], pearson(a[name], b[name])) for name in names]
    rows = []
    for name, x, y, r in panels:
        known = x.isfinite() & y.isfinite()
        rows.append([name, r.r, r.low, r.high, spearman(x[known], y[known]), r.heads])
    stem = f"{second}_against_{first}"
    report.add_table(stem, Table(["measure", "pearson", "low", "high", "spearman", "heads"], rows))
    report.add_figure(stem, scatter.draw(report.layout, panels, first, second))


def add_history(report: Report, name: str, label: str, points: Sequence[Point], figure: bool) -> None:
    """``<name>_history``: one row per point and head; figure: also draw it."""
    heads = per_head(report.layout, {})
    rows = [
        [point.epoch, point.step, *head, value]
        for point in points
        for head, value in zip(heads.rows, point.values, strict=True)
    ]
    report.add_table(f"{name}_history", Table(["epoch", "step", *heads.columns, "value"], rows))
    if figure:
        values = torch.tensor([point.values for point in points], dtype=torch.float64)
        steps = [point.step for point in points]
        report.add_figure(f"{name}_history", history_figure.draw(report.layout, steps, values, label))
