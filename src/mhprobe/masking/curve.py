"""From a curve's description to its rows: choose the path, score it, say how sure the score is.

A searched path is chosen on the selection split and scored on both splits, so that a reader sees what choosing gained;
a random path is scored on the report split, each repeat and the mean over repeats. Every point is compared with the
unmasked model on the same images.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import mhprobe.masking
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.base import Curve, Evaluate, Order, Units, t_interval, trace
from mhprobe.masking.constraints import check_reached, constrain, target_of
from mhprobe.masking.limits import Cost, Limits
from mhprobe.masking.units import make_units
from mhprobe.stats.significance import holm

Row = dict[str, Any]
COLUMNS = (
    *("curve", "split", "step", "heads_masked", "unit", "masked", "accuracy", "loss", "low", "high"),
    *("p", "p_holm", "delta", "delta_low", "delta_high", "spent", "exhaustive", "seed"),
)
WITHIN = 0.01  # one point of accuracy
LEVEL = 0.05  # of the tests


@dataclasses.dataclass(frozen=True)
class CurveSpec:
    """What a curve shows.

    name: of the curve. units: index, layer, head or stage. order: which goes next. exclude_layers: never masked.
    min_heads_per_layer: of every layer so many heads stay. rescale: whether the heads that a layer keeps are
    multiplied by H / kept. target: where to stop: {heads: at most so many are left} | {flops: share of the dense
    model's} | {latency: share}.
    """

    name: str
    units: str
    order: Order
    exclude_layers: Sequence[int] = ()
    min_heads_per_layer: int = 0
    rescale: bool = False
    target: Mapping[str, float] | None = None

    def limited_units(self, layout: HeadLayout, costs: Mapping[str, Cost]) -> Units:
        """The units, which know how far the curve may go. costs: what masks leave of flops and latency."""
        target = None if self.target is None else target_of(self.target, layout, costs)
        units = make_units(self.units, layout, self.exclude_layers)
        return constrain(units, Limits(layout, self.min_heads_per_layer, target), self.name)

    def check(self, layout: HeadLayout) -> None:
        """UserError for what can be seen to be impossible before the model has run."""
        unknown = dict.fromkeys(("flops", "latency"), lambda masks: torch.zeros(len(masks), dtype=torch.float64))
        self.limited_units(layout, unknown)


def order_named(name: str, **options: Any) -> Order:
    """``keep_best`` -> the ``KeepBest`` of masking/keep_best.py: an order is found by the name of its file."""
    orders = known_orders()
    if name not in orders:
        raise UserError(f"masking order: expected one of {', '.join(sorted(orders))}, got {name!r}.")
    return orders[name](**options)


def known_orders() -> dict[str, type[Order]]:
    """The class of every file of masking/ that holds an order, by the file's name."""
    found: dict[str, type[Order]] = {}
    for module in pkgutil.iter_modules(mhprobe.masking.__path__, "mhprobe.masking."):
        for item in vars(importlib.import_module(module.name)).values():
            here = inspect.isclass(item) and item.__module__ == module.name
            if here and issubclass(item, Order) and not inspect.isabstract(item):
                found[module.name.rpartition(".")[2]] = item
    return found


def masking_curve(
    layout: HeadLayout,
    spec: CurveSpec,
    evaluate_select: Evaluate,
    evaluate_report: Evaluate,
    *,
    splits: tuple[str, str] = ("validation", "test"),
    steps: int | None = None,
    step: int | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> list[Row]:
    """The rows of one curve, with the columns of ``COLUMNS``; step 0 is the unmasked model.

    splits: names of the selection and the report split. If they are equal, the path is chosen and reported on the
        same images, as papers do that did not separate them, and ``evaluate_select`` is used for both.
    steps: the path stops there. step: only this point of the curve is scored, and the search goes no further than
        it has to; no rows if the path is shorter.
    costs: what masks leave of "flops" and "latency", as shares; for targets in these units.

    accuracy, low and high are in [0, 1], loss in nats. low and high: Wilson's 95 % interval over images; on rows with
    seed "mean", Student's over repeats, with ``heads_masked`` their mean and no heads named.
    Against the unmasked model on the same images: p of the accuracy (McNemar, exact) and p_holm (over the steps of the
    curve; empty where a single step is scored); delta of the loss in nats, positive where masking hurts, with its 95 %
    interval (bootstrap over images; on "mean" rows Student's over repeats).
    spent, exhaustive: image-forwards that the search asked for in the step, and that trying every candidate on every
    image would have taken; empty where the order does not say.
    """
    for name, value in (("steps", steps), ("step", step)):
        if value is not None and value < 0:
            raise UserError(f"masking.{name}: expected a whole number from 0, or null for all, got {value}.")
    units = spec.limited_units(layout, costs or {})
    length = spec.order.length(units, layout)
    length = length if steps is None else min(steps, length)
    if step is not None:
        if step > length:
            return []
        length = step

    paths = spec.order.paths(units, layout, evaluate_select, length)
    if units.limits is not None and steps is None and step is None:
        for path in paths:
            check_reached(units.limits, path.masks()[-1], spec.name)
    if step is not None and any(len(path.names) < step for path in paths):
        return []

    rows: list[Row] = []
    if spec.order.searches or splits[0] == splits[1]:
        rows += _rows(spec.name, splits[0], trace(paths, evaluate_select, step))
    if splits[0] != splits[1]:
        rows += _rows(spec.name, splits[1], trace(paths, evaluate_report, step))
    return rows


def totals(rows: Sequence[Row]) -> list[Row]:
    """A row of numbers per curve and split, for searched and for averaged curves that have more than one step.

    area: mean accuracy over the fraction of heads masked (trapezoids, divided by the range).
    heads_within_1_point: heads that go before the accuracy first falls more than 0.01 below the unmasked model's.
    heads_before_worse: heads that go before the accuracy is first significantly lower (p_holm < 0.05); empty on
        averaged curves.
    """
    curves: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["seed"] in ("", "mean"):
            curves.setdefault((row["curve"], row["split"]), []).append(row)
    found: list[Row] = []
    for (curve, split), points in curves.items():
        if len(points) < 2 or points[0]["step"] != 0:
            continue
        heads = torch.tensor([float(row["heads_masked"]) for row in points], dtype=torch.float64)
        accuracy = torch.tensor([row["accuracy"] for row in points], dtype=torch.float64)
        tested = points[0]["p_holm"] != ""
        found.append(
            {
                "curve": curve,
                "split": split,
                "unmasked": points[0]["accuracy"],
                "area": (torch.trapezoid(accuracy, heads) / (heads[-1] - heads[0])).item(),
                "heads_within_1_point": _before(points, falls),
                "heads_before_worse": _before(points, worse) if tested else "",
            }
        )
    return found


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers of ``totals`` by name, ``<curve>/<split>/<number>``."""
    return {
        f"{row['curve']}/{row['split']}/{name}": row[name]
        for row in totals(rows)
        for name in ("area", "heads_within_1_point", "heads_before_worse")
        if row[name] != ""
    }


def falls(row: Row, unmasked: Row) -> bool:
    """Whether the point lies more than one point of accuracy below the unmasked model."""
    return row["accuracy"] < unmasked["accuracy"] - WITHIN


def worse(row: Row, unmasked: Row) -> bool:
    """Whether the point's accuracy is significantly below the unmasked model's."""
    return row["p_holm"] != "" and row["p_holm"] < LEVEL and row["accuracy"] < unmasked["accuracy"]


def _before(points: Sequence[Row], dropped: Callable[[Row, Row], bool]) -> float:
    """Heads masked at the last point before the first that has dropped below the first of all."""
    kept = itertools.takewhile(lambda row: not dropped(row, points[0]), points)
    return float(max(row["heads_masked"] for row in kept))


def _rows(name: str, split: str, curves: Sequence[Curve]) -> list[Row]:
    """Points of each curve in turn, and of their mean where there are several."""
    rows = [row for curve in curves for row in _points(name, split, curve)]
    if len(curves) > 1:
        shortest = min(len(curve.step) for curve in curves)
        rows += [_mean_row(name, split, k, curves) for k in range(shortest)]
    return rows


def _points(name: str, split: str, curve: Curve) -> list[Row]:
    tests = [k for k, step in enumerate(curve.step) if step > 0]
    p_holm: list[float | str] = ["" if len(curve.step) == 1 else 1.0] * len(curve.step)
    if len(curve.step) > 1:
        for k, adjusted in zip(tests, holm(curve.p[tests]).tolist(), strict=True):
            p_holm[k] = adjusted
    spent, exhaustive = (
        ["", *counts] if counts else [""] * (len(curve.path.names) + 1)
        for counts in (curve.path.spent, curve.path.exhaustive)
    )
    return [
        {
            **dict.fromkeys(COLUMNS, ""),  # in this order
            "curve": name,
            "split": split,
            "step": step,
            "heads_masked": int(curve.mask[k].sum()),
            "unit": curve.path.names[step - 1] if step else "",
            "masked": " ".join(str(head) for head in torch.nonzero(curve.mask[k]).flatten().tolist()),
            **{
                column: getattr(curve, column)[k].item()
                for column in ("accuracy", "loss", "low", "high", "p", "delta", "delta_low", "delta_high")
            },
            "p_holm": p_holm[k],
            "spent": spent[step],
            "exhaustive": exhaustive[step],
            "seed": "" if curve.path.seed is None else curve.path.seed,
        }
        for k, step in enumerate(curve.step)
    ]


def _mean_row(name: str, split: str, k: int, curves: Sequence[Curve]) -> Row:
    accuracy, low, high = t_interval(torch.stack([curve.accuracy[k] for curve in curves]))
    delta, delta_low, delta_high = t_interval(torch.stack([curve.delta[k] for curve in curves]))
    heads = sum(int(curve.mask[k].sum()) for curve in curves) / len(curves)
    return {
        **dict.fromkeys(COLUMNS, ""),
        "curve": name,
        "split": split,
        "step": curves[0].step[k],
        "heads_masked": int(heads) if heads.is_integer() else heads,
        "accuracy": accuracy,
        "loss": torch.stack([curve.loss[k] for curve in curves]).mean().item(),
        "low": low,
        "high": high,
        "delta": delta,
        "delta_low": delta_low,
        "delta_high": delta_high,
        "seed": "mean",
    }
