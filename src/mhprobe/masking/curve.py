"""From a curve's description to its rows: choose the path, score it, say how sure the score is.

A searched path is chosen on the selection split and scored on both splits, so that a reader sees what choosing gained;
a random path is scored on the report split, each repeat and the mean over repeats.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import mhprobe.masking
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Curve, Evaluate, Order, t_interval, trace
from mhprobe.masking.store import OrderStore, order_key
from mhprobe.masking.units import make_units

Row = dict[str, Any]
COLUMNS = ("curve", "split", "step", "heads_masked", "unit", "masked", "accuracy", "loss", "low", "high", "seed")


@dataclasses.dataclass(frozen=True)
class CurveSpec:
    """name: of the curve. units: index, layer, head or stage. order: which goes next. exclude_layers: never masked."""

    name: str
    units: str
    order: Order
    exclude_layers: Sequence[int] = ()


def order_named(name: str, **options: Any) -> Order:
    """``keep_best`` -> the ``KeepBest`` of masking/keep_best.py: an order is found by the name of its file."""
    orders: dict[str, Any] = {}
    for module in pkgutil.iter_modules(mhprobe.masking.__path__, "mhprobe.masking."):
        file = module.name.rpartition(".")[2]
        candidate = getattr(importlib.import_module(module.name), _camel(file), None)
        if hasattr(candidate, "paths"):
            orders[file] = candidate
    if name not in orders:
        raise UserError(f"masking order: expected one of {', '.join(sorted(orders))}, got {name!r}.")
    return orders[name](**options)


def masking_curve(
    layout: HeadLayout,
    spec: CurveSpec,
    evaluate_select: Evaluate,
    evaluate_report: Evaluate,
    *,
    splits: tuple[str, str] = ("validation", "test"),
    store: OrderStore | None = None,
    identity: Mapping[str, Any] | None = None,
    steps: int | None = None,
    step: int | None = None,
) -> list[Row]:
    """The rows of one curve, with the columns of ``COLUMNS``; step 0 is the unmasked model.

    splits: names of the selection and the report split. If they are equal, the path is chosen and reported on the
        same images, as papers do that did not separate them, and ``evaluate_select`` is used for both.
    store, identity: where searched orders are kept, and what besides units and order decides them: a dict of plain
        values that names at least the weights and the data.
    steps: the path stops there. step: only this point of the curve is scored, and the search goes no further than
        it has to; no rows if the path is shorter.

    accuracy, low and high are in [0, 1], loss in nats. low and high: Wilson's 95 % interval over images; on rows with
    seed "mean", Student's over repeats, with ``heads_masked`` their mean and no heads named.
    """
    for name, value in (("steps", steps), ("step", step)):
        if value is not None and value < 0:
            raise UserError(f"masking.{name}: expected a whole number from 0, or null for all, got {value}.")
    units = make_units(spec.units, layout, spec.exclude_layers)
    length = spec.order.length(units, layout)
    length = length if steps is None else min(steps, length)
    if step is not None:
        if step > length:
            return []
        length = step

    start: list[int] = []
    on_step = None
    if spec.order.searches and store is not None:
        key = order_key(
            identity=dict(identity or {}),
            split=splits[0],
            units=[units.names, units.masks.int().tolist()],
            order=[type(spec.order).__name__, dataclasses.asdict(spec.order)],
        )
        start, on_step = store.load(key), functools.partial(store.save, key)
    paths = spec.order.paths(units, layout, evaluate_select, length, start, on_step)

    rows: list[Row] = []
    if spec.order.searches or splits[0] == splits[1]:
        rows += _rows(spec.name, splits[0], trace(paths, evaluate_select, step))
    if splits[0] != splits[1]:
        rows += _rows(spec.name, splits[1], trace(paths, evaluate_report, step))
    return rows


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Two numbers per curve and split, for searched and for averaged curves that have more than one step.

    ``<curve>/<split>/area``: mean accuracy over the fraction of heads masked (trapezoids, divided by the range).
    ``<curve>/<split>/heads_within_1_point``: heads that go before the accuracy first falls more than 0.01 below
    the unmasked model's.
    """
    curves: dict[str, list[Row]] = {}
    for row in rows:
        if row["seed"] in ("", "mean"):
            curves.setdefault(f"{row['curve']}/{row['split']}", []).append(row)
    numbers: dict[str, float] = {}
    for name, points in curves.items():
        if len(points) < 2 or points[0]["step"] != 0:
            continue
        heads = torch.tensor([float(row["heads_masked"]) for row in points], dtype=torch.float64)
        accuracy = torch.tensor([row["accuracy"] for row in points], dtype=torch.float64)
        numbers[f"{name}/area"] = (torch.trapezoid(accuracy, heads) / (heads[-1] - heads[0])).item()
        within = (accuracy >= accuracy[0] - 0.01).long().cumprod(0)
        numbers[f"{name}/heads_within_1_point"] = heads[int(within.sum()) - 1].item()
    return numbers


def _rows(name: str, split: str, curves: Sequence[Curve]) -> list[Row]:
    """Points of each curve in turn, and of their mean where there are several."""
    rows = [
        {
            "curve": name,
            "split": split,
            "step": step,
            "heads_masked": int(curve.mask[k].sum()),
            "unit": curve.path.names[step - 1] if step else "",
            "masked": " ".join(str(head) for head in torch.nonzero(curve.mask[k]).flatten().tolist()),
            "accuracy": curve.accuracy[k].item(),
            "loss": curve.loss[k].item(),
            "low": curve.low[k].item(),
            "high": curve.high[k].item(),
            "seed": "" if curve.path.seed is None else curve.path.seed,
        }
        for curve in curves
        for k, step in enumerate(curve.step)
    ]
    if len(curves) > 1:
        rows += [_mean_row(name, split, k, curves) for k in range(len(curves[0].step))]
    return rows


def _mean_row(name: str, split: str, k: int, curves: Sequence[Curve]) -> Row:
    accuracy, low, high = t_interval(torch.stack([curve.accuracy[k] for curve in curves]))
    heads = sum(int(curve.mask[k].sum()) for curve in curves) / len(curves)
    return {
        "curve": name,
        "split": split,
        "step": curves[0].step[k],
        "heads_masked": int(heads) if heads.is_integer() else heads,
        "unit": "",
        "masked": "",
        "accuracy": accuracy,
        "loss": torch.stack([curve.loss[k] for curve in curves]).mean().item(),
        "low": low,
        "high": high,
        "seed": "mean",
    }


def _camel(file: str) -> str:
    return "".join(word.capitalize() for word in file.split("_"))
