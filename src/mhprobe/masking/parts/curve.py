"""Masking curves: choose a path on the selection split, score it on both splits, compare with the unmasked model.

The difference between the splits is what choosing gained. A random path is scored on the report
split alone.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

import mhprobe.masking
from mhprobe.errors import UserError, quoted, whole_number
from mhprobe.heads import FillName, HeadLayout
from mhprobe.io.code import classes_in
from mhprobe.masking.base import SHARES, Cost, Evaluate, Limits, Order, Path, Units
from mhprobe.masking.knapsack import refuse_multiple
from mhprobe.masking.parts.trace import Curve, trace
from mhprobe.masking.parts.units import (
    check_reached,
    constrain,
    make_units,
    refuse_neurons,
    targets_of,
)


@dataclasses.dataclass(frozen=True)
class CurveSpec:
    """Specification of a curve: units, order, fill and limits.

    units: index, layer, head or stage. exclude_layers: never masked. min_heads_per_layer: of every
    layer so many heads stay. rescale: multiply the heads that a layer keeps by H / kept. target:
    where to stop, {heads: at most so many are left} or {one of SHARES: share of the dense model's}.
    fill: name of the replacement for masked heads, for reports; the evaluate functions apply it.
    """

    name: str
    units: str
    order: Order
    exclude_layers: Sequence[int] = ()
    min_heads_per_layer: int = 0
    rescale: bool = False
    target: Mapping[str, float] | None = None
    fill: FillName = "zero"

    def limited_units(self, layout: HeadLayout, costs: Mapping[str, Cost]) -> Units:
        """The units with the curve's limits. costs: what masks leave of SHARES."""
        refuse_neurons(layout, f"curve {self.name}")
        refuse_multiple(getattr(self.order, "multiple", 1), layout)
        targets = () if self.target is None else targets_of(self.target, layout, costs)
        units = make_units(self.units, layout, self.exclude_layers)
        return constrain(
            units, Limits(layout, self.min_heads_per_layer, targets), f"curve {self.name}"
        )

    def check(self, layout: HeadLayout) -> None:
        """UserError for options that are impossible in this layout, before the model has run."""
        costs = dict.fromkeys(SHARES, lambda masks: torch.zeros(len(masks)).double())
        self.limited_units(layout, costs)


def order_named(name: str, **options: Any) -> Order:
    """``keep_best`` -> ``KeepBest`` of masking/keep_best.py.

    UserError for an unknown order, and for a wrong option.
    """
    orders = known_orders()
    if name not in orders:
        raise UserError(
            f"masking order: expected one of {', '.join(sorted(orders))}, got {quoted(name)}."
        )
    return orders[name](**options)


def known_orders() -> dict[str, type[Order]]:
    """The class of every file of masking/ that holds an order, by the file's name."""
    return {
        order.__module__.rpartition(".")[2]: order for order in classes_in(mhprobe.masking, Order)
    }


class Splits(NamedTuple):
    """Splits that masks are scored on.

    selection: where paths are chosen. report: where the curve is reported; if it is the same
        split, ``evaluate_select`` is used for both, as in papers that choose and report on the same
        images.
    chosen_on: the split that the order's scores were measured on before; by default ``selection``.
    chosen_by: the digest of its images.
    """

    selection: str = "validation"
    report: str = "test"
    chosen_on: str | None = None
    chosen_by: str = ""


def curve_on_splits(
    layout: HeadLayout,
    spec: CurveSpec,
    evaluate_select: Evaluate,
    evaluate_report: Evaluate,
    *,
    splits: Splits | tuple[str, str] = Splits(),
    steps: int | None = None,
    step: int | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> list[Curve]:
    """One curve on the splits it is scored on, the one to report last; step 0 is the unmasked model.

    splits: names of the selection and the report split, see ``Splits``.
    steps: the path stops there. step: only this point of the curve is scored; no curve if the path
    is shorter.
    costs: what masks leave of SHARES, by unit; for targets in these units.
    """
    splits = Splits(*splits)
    for name, value in (("steps", steps), ("step", step)):
        whole_number(name, value, none="all")
    units = spec.limited_units(layout, costs or {})
    paths = _paths(spec, units, layout, evaluate_select, steps, step)
    if not paths:
        return []
    chosen_on = (splits.chosen_on or splits.selection) if spec.order.searches else None
    apart = splits.selection != splits.report
    fitted = spec.fill != "zero" and not apart  # the fill was found on the images that score it
    scored = [(splits.report, evaluate_report)] if apart else []
    if spec.order.searches or not scored:
        scored.insert(0, (splits.selection, evaluate_select))
    return [
        Curve(
            name=spec.name,
            split=split,
            search=spec.order.search_name(units),
            chosen_on=chosen_on,
            rescale=spec.rescale,
            traces=trace(paths, evaluate, step, tested=split != chosen_on and not fitted),
            fill=spec.fill,
            scored=evaluate.scored,
            layout=layout.digest,
            chosen_by=splits.chosen_by if chosen_on else "",
        )
        for split, evaluate in scored
    ]


def _paths(
    spec: CurveSpec,
    units: Units,
    layout: HeadLayout,
    evaluate: Evaluate,
    steps: int | None,
    step: int | None,
) -> list[Path]:
    """The paths of a curve, of at most ``steps``, or up to ``step``; none where one does not reach it."""
    longest = spec.order.length(units, layout)
    if steps is not None:
        longest = min(longest, steps)
    if step is None:
        paths = spec.order.paths(units, layout, evaluate, longest)
        if units.limits is not None and steps is None:
            for path in paths:
                check_reached(units, path.masks()[-1], f"curve {spec.name}")
        return paths
    if step > longest:
        return []
    paths = spec.order.paths(units, layout, evaluate, step)
    return [] if any(len(path.names) < step for path in paths) else paths
