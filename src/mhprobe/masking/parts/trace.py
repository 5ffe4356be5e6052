"""A masking curve as numbers: accuracy and loss along a path through the heads, their intervals, and totals.

Shapes: A heads, K points of a curve, R repeats. In every mask True means: head off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import trapezoid
from torch import Tensor

from mhprobe.masking.base import LABELS, ROUNDING, Evaluate, Path, Scored
from mhprobe.stats.intervals import bootstrap
from mhprobe.stats.promise import Guarantee, kept_promise
from mhprobe.stats.significance import holm, lower, mcnemar, paired_difference, t_interval, wilson


class Points(NamedTuple):
    """Numbers at K points, each (K,) float64.

    heads: masked. accuracy: in [0, 1]. loss: mean nats. difference, delta: accuracy and loss minus
    the unmasked model's on the same images (delta is positive where masking hurts). low, high (of
    accuracy), _low, _high: 95 % intervals.
    """

    heads: Tensor
    accuracy: Tensor
    loss: Tensor
    low: Tensor
    high: Tensor
    difference: Tensor
    difference_low: Tensor
    difference_high: Tensor
    delta: Tensor
    delta_low: Tensor
    delta_high: Tensor


@dataclass(frozen=True)
class Trace:
    """One path with its points. step: their numbers, 0 for the unmasked model. mask: (K, A) bool.

    Intervals of accuracy are Wilson's, of difference Newcombe's, of delta by bootstrap over images
    (stats/). p: (K,) McNemar's exact test against the unmasked model; None on the images that chose
    the path. promised: number of steps that keep a guarantee. right: (K, N) bool, images classified
    correctly, where one step alone was scored; else None.
    """

    path: Path
    step: tuple[int, ...]
    mask: Tensor
    points: Points
    p: Tensor | None
    promised: int | None = None
    right: Tensor | None = None

    @property
    def p_holm(self) -> Tensor | None:
        """(K,) p after Holm's correction over the steps; None where one step alone was scored."""
        if self.p is None or len(self.step) == 1:
            return None
        masked = torch.tensor(self.step) > 0
        return torch.ones_like(self.p).masked_scatter(masked, holm(self.p[masked]))


@dataclass(frozen=True)
class Curve:
    """Numbers of one curve on one split.

    search: name of the search (e.g. "exact"), or empty. chosen_on: the split whose images chose the
    path, or None;
    chosen_by: their digest. rescale: whether kept heads were multiplied by H / kept. traces: one;
    of a random order one per repeat. guarantee: of the traces' ``promised``. fill: replacement for
    masked heads. scored: names of "accuracy" and "loss". layout: digest of the layout.
    """

    name: str
    split: str
    search: str
    chosen_on: str | None
    rescale: bool
    traces: tuple[Trace, ...]
    guarantee: Guarantee | None = None
    fill: str = "zero"
    scored: Scored = LABELS
    layout: str = ""
    chosen_by: str = ""

    @property
    def optimistic(self) -> bool:
        """True if the path was chosen on the images that score it: the curve then lies higher than on new ones."""
        return self.chosen_on == self.split

    @property
    def averaged(self) -> bool:
        """True if ``points`` are means over repeats."""
        return len(self.traces) > 1

    @property
    def step(self) -> tuple[int, ...]:
        """The steps that all traces have."""
        return min((trace.step for trace in self.traces), key=len)

    @property
    def points(self) -> Points:
        """Points of the one trace; of several their means, with Student's 95 % intervals over repeats."""
        if not self.averaged:
            return self.traces[0].points
        accuracy, low, high = t_interval(self._repeats("accuracy"))
        difference, difference_low, difference_high = t_interval(self._repeats("difference"))
        delta, delta_low, delta_high = t_interval(self._repeats("delta"))
        return Points(
            heads=self._repeats("heads").mean(0),
            accuracy=accuracy,
            loss=self._repeats("loss").mean(0),
            low=low.clamp(min=0),
            high=high.clamp(max=1),
            difference=difference,
            difference_low=difference_low,
            difference_high=difference_high,
            delta=delta,
            delta_low=delta_low,
            delta_high=delta_high,
        )

    def _repeats(self, name: str) -> Tensor:
        """(R, K) values of a column of all traces, at the steps that all have."""
        count = len(self.step)
        return torch.stack([getattr(trace.points, name)[:count] for trace in self.traces])

    @property
    def worse(self) -> Tensor | None:
        """(K,) bool: significantly less accurate than the unmasked model; None where that was not tested."""
        p_holm = None if self.averaged else self.traces[0].p_holm
        accuracy = self.points.accuracy
        return None if p_holm is None else lower(p_holm, accuracy - accuracy[0])

    @property
    def falls(self) -> Tensor:
        """(K,) bool: more than a point of accuracy below the unmasked model."""
        accuracy = self.points.accuracy
        return accuracy < accuracy[0] - 0.01 - ROUNDING

    @property
    def drop(self) -> int:
        """Number of points before the first that is significantly lower: all of them where none is.

        The one rule of curves, figures and tables. Where nothing was tested, on the images that
        chose the path, the first point that is more than a point of accuracy lower.
        """
        return first_drop(self.falls if self.worse is None else self.worse)

    @property
    def little(self) -> int:
        """Number of points before the first that is not shown to lose less than a point of accuracy.

        Fewer images show less. Where nothing was tested, ``drop``.
        """
        return self.drop if self.unshown is None else first_drop(self.unshown)

    @property
    def unshown(self) -> Tensor | None:
        """(K,) bool: not shown to lose less than a point, since the interval of the change reaches lower.

        None where nothing was tested. Fewer images have wider intervals, and show less.
        """
        if self.worse is None:
            return None
        low = self.points.difference_low
        return (low < -0.01 - ROUNDING) & (torch.arange(len(low)) > 0)


def first_drop(dropped: Tensor) -> int:
    """The first of K points where ``dropped`` is True; K if there is none."""
    return int(dropped.int().argmax()) if dropped.any() else len(dropped)


def trace(
    paths: Sequence[Path],
    evaluate: Evaluate,
    step: int | None = None,
    tested: bool = True,
    guarantee: Guarantee | None = None,
    seed: int = 0,
) -> tuple[Trace, ...]:
    """One Trace per path, at all its steps or only at ``step``, by one walk over the data.

    guarantee: for the first steps of each path, on images that did not choose it. seed: of the
    order of the images.
    """
    steps = [tuple(range(len(path.names) + 1)) if step is None else (step,) for path in paths]
    masks = [path.masks()[list(chosen)] for path, chosen in zip(paths, steps, strict=True)]
    unmasked = paths[0].added.new_zeros(1, paths[0].added.shape[1])
    distinct, place = torch.unique(torch.cat([unmasked, *masks]), dim=0, return_inverse=True)
    scores = evaluate(distinct)
    images, right = torch.tensor(scores.images), scores.right[place[0]]
    both = (scores.right & right).sum(1)
    lost = (~scores.right & right).sum(1)
    won = (scores.right & ~right).sum(1)
    p = mcnemar(lost, won)
    down = paired_difference(both, lost, won, images)
    change = (won - lost).double() / images, -down[1], -down[0]
    losses = scores.losses - scores.losses[place[0]]
    accuracy = scores.accuracy, scores.mean_loss, *wilson(scores.correct, images)
    points = Points(
        distinct.sum(1).double(), *accuracy, *change, losses.mean(1), *bootstrap(losses)
    )

    def promised(at: Tensor) -> int | None:
        if guarantee is None:
            return None
        return kept_promise(
            right, scores.right[at[1:]], guarantee.points, guarantee.confidence, seed
        )

    return tuple(
        Trace(
            path,
            chosen,
            mask,
            Points(*(part[at] for part in points)),
            p[at] if tested else None,
            promised(at),
            None if step is None else scores.right[at],
        )
        for path, chosen, mask, at in zip(
            paths, steps, masks, place[1:].split([len(m) for m in masks]), strict=True
        )
    )


class Totals(NamedTuple):
    """Totals of one curve on one split.

    unmasked: accuracy with all heads. area_shared: mean accuracy over the heads masked, from none
        to ``shared_heads``, the most that every curve of this split reaches; larger is better for
        curves that keep.
    heads_within_1_point: heads that go before the accuracy first falls more than 0.01 below the
    unmasked model's.
    heads_shown_within_1_point: heads that go while the 95 % interval of the change stays above
        -0.01; None where nothing was tested. of: name of the accuracy.
    """

    curve: str
    split: str
    search: str
    unmasked: float
    area_shared: float
    shared_heads: float
    heads_within_1_point: float
    heads_shown_within_1_point: float | None
    of: str = "accuracy"


def totals(curves: Sequence[Curve]) -> list[Totals]:
    """Totals of the curves that have more than one step."""
    complete = [curve for curve in curves if curve.step[0] == 0 and len(curve.step) > 1]
    last = [(curve.split, float(curve.points.heads[-1])) for curve in complete]
    shared = {split: min(heads for at, heads in last if at == split) for split, _ in last}
    return [
        Totals(
            curve=curve.name,
            split=curve.split,
            search=curve.search,
            unmasked=float(curve.points.accuracy[0]),
            area_shared=mean_accuracy(curve.points, shared[curve.split]),
            shared_heads=shared[curve.split],
            heads_within_1_point=_before(curve.points, curve.falls),
            heads_shown_within_1_point=_shown(curve),
            of=curve.scored.right,
        )
        for curve in complete
    ]


def summary(rows: Sequence[Totals]) -> dict[str, float]:
    """The numbers by name, ``<curve>/<split>/<number>``."""
    names = ("area_shared", "shared_heads", "heads_within_1_point", "heads_shown_within_1_point")
    numbers = {
        f"{row.curve}/{row.split}/{name}": getattr(row, name) for row in rows for name in names
    }
    return {name: number for name, number in numbers.items() if number is not None}


def numbers_at_step(curves: Sequence[Curve]) -> dict[str, float]:
    """Numbers of the curves of which one step alone was scored; {} of whole curves.

    ``masked/<curve>/<number>`` on the last split of each curve: the accuracy (or the metric of
    another score), its ends ``_low`` and ``_high``, ``_difference`` from the whole network with
    ``_difference_low`` and ``_high``, and ``heads``, how many are off. ``masked/<number>``: those of
    the first curve that is no random one.
    """
    last = {curve.name: curve for curve in curves if len(curve.step) == 1}
    numbers: dict[str, float] = {}
    for name, curve in last.items():
        numbers |= {f"{name}/{key}": number for key, number in _masked(curve).items()}
    if (main := answering(curves)) is not None:
        numbers |= _masked(main)
    return {f"masked/{name}": number for name, number in numbers.items()}


def answering(curves: Sequence[Curve]) -> Curve | None:
    """The curve that answers for a single step: the first that is no random one, on its last split."""
    last = {curve.name: curve for curve in curves if len(curve.step) == 1}
    ordered = [curve for curve in last.values() if curve.traces[0].path.seed is None]
    return next(iter([*ordered, *last.values()]), None)


def _masked(curve: Curve) -> dict[str, float]:
    metric = curve.scored.metric
    names = {
        "accuracy": metric,
        "low": f"{metric}_low",
        "high": f"{metric}_high",
        "difference": f"{metric}_difference",
        "difference_low": f"{metric}_difference_low",
        "difference_high": f"{metric}_difference_high",
        "heads": "heads",
    }
    return {new: float(getattr(curve.points, old)[0]) for old, new in names.items()}


def mean_accuracy(points: Points, until: float) -> float:
    """Mean accuracy from no head masked to ``until`` (trapezoids, straight lines between points)."""
    heads = points.heads.numpy()
    accuracy = points.accuracy.numpy()
    x = np.append(heads[heads < until], until)
    return float(trapezoid(np.interp(x, heads, accuracy), x)) / until


def _shown(curve: Curve) -> float | None:
    unshown = curve.unshown
    return None if unshown is None else _before(curve.points, unshown)


def _before(points: Points, dropped: Tensor) -> float:
    """Heads masked at the last point before the first that has dropped."""
    return float(points.heads[: first_drop(dropped)].max())
