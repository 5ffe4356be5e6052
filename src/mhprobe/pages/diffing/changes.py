"""Changes of each head's measures in a training: before, after, and their paired difference.

Images are dealt into folds, and each measure is taken of every fold in both networks. A change is
the mean over images of (after - before), with Student's interval over folds; p is of no change,
with Holm's correction over all heads and measures. Of fewer than ``LEAST`` images there is no p,
and none of a measure of weights alone, which no image changes.

Shapes: A heads of network A, F folds, N images.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe import measures as library
from mhprobe.api import measure
from mhprobe.differences.compare import RATE, Batches
from mhprobe.differences.errors import Pairs
from mhprobe.differences.sides import Torch
from mhprobe.errors import UserError, nearest, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import progress
from mhprobe.io.written import counted, rounded
from mhprobe.measures import AttentionDistance, Entropy, GateImportance, Sinks, WriteNorm
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.pages.diffing.worth import at_once, images_of, of_other
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm, t_interval

FOLDS = 10
# of fewer images a skewed head that did not change is named too often: in resamples of two trainings of
# one ViT in 4.9 % of draws of 64 images, in 6.4 % of 30, in 9.7 % of 12
LEAST = 64


class Kind(NamedTuple):
    """A measure of heads. called: its words in a sentence. exact: True if no image changes its value."""

    make: Callable[[HeadLayout], Measure]
    called: str
    exact: bool = False


Kinds = Mapping[str, Kind]
"""Measures by the beginning of their columns."""
Values = Mapping[str, Tensor]
"""(F, A) values of every fold, by the beginning of the columns; NaN for heads that the network has not."""

KINDS: Kinds = {
    "importance": Kind(GateImportance, "importance"),
    "write": Kind(WriteNorm, "relative length of what is written"),
    "distance": Kind(AttentionDistance, "distance of attention in pixels"),
    "entropy": Kind(Entropy, "entropy of attention in nats"),
    "sinks": Kind(Sinks, "share of attention on the favourite token"),
}


def kinds_of(names: object) -> Kinds | None:
    """Return the measures of these names; None for None, which asks for the usual ones.

    Raises UserError for what is no list of names, a name that the library has not, one that is
    named twice, and a measure of pairs.
    """
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not names:
        raise UserError(
            f"diff: measures: expected names, as entropy,write_norm, got {quoted(names)}."
        )
    classes = [getattr(library, name) for name in dir(library) if name != "Measure"]
    every = {one.__module__.rpartition(".")[2]: one for one in classes}
    short = {kind.make: name for name, kind in KINDS.items()}
    kinds: dict[str, Kind] = {}
    for name in names:
        made = _of_heads(name, every)
        key = short.get(made, str(name))
        if key in kinds:
            raise UserError(f"diff: measures: {name} is named twice.")
        # a label that options decide is no word of the class
        called = made.label if made.label != Measure.label else key.replace("_", " ")
        kinds[key] = KINDS[key] if key in KINDS else Kind(made, called, not made.of_images)
    return kinds


def _of_heads(name: object, every: Mapping[str, type[Measure]]) -> type[Measure]:
    """The measure of a name. UserError for another name, and for a measure of pairs."""
    single = sorted(key for key, one in every.items() if one.kind == "per_head")
    if name not in every:
        raise UserError(
            f"diff: measures: {nearest(name, single)}there is no {quoted(name)}; expected some of "
            f"{', '.join(single)}."
        )
    made = every[str(name)]
    if made.kind != "per_head":
        raise UserError(
            f"diff: measures: {name} is of pairs of heads or blocks; expected some of "
            f"{', '.join(single)}. How alike a head is to itself before is said anyway."
        )
    return made


class Folds(NamedTuple):
    """Images that are dealt into folds, and the measures that are taken of each.

    labels: (N,) of the photographs, for importance; without them it is of the class that each
    network gives, or of the features' length. images: N.
    """

    batches: Batches
    labels: Tensor | None
    images: int
    kinds: Kinds = KINDS
    show: bool = False

    @property
    def number(self) -> int:
        return min(FOLDS, self.images)

    def of(self, side: Torch, at: int) -> dict[str, list[Tensor]]:
        """Return by measure its values, (A_of_side,) of every fold; none that the network does not allow.

        at: 0 for A's images, 1 for B's.
        """
        images = images_of(side, at, self.batches)
        values: dict[str, list[Tensor]] = {name: [] for name in self.kinds}
        with progress(f"measuring {side.name}", self.number, "folds", self.show) as done:
            for fold in range(self.number):
                try:
                    found = self._taken(side, images, fold, self.kinds)
                except UserError:  # none fits, as of a network that hides both slopes and attention
                    return {}
                for name, value in found.items():
                    values[name].append(value)
                done(1)
        return {name: of for name, of in values.items() if len(of) == self.number}

    def mean(self, name: str, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over images of (F, ...) values of a measure, and half of its 95 % interval.

        The interval is over folds; NaN for a measure that no image changes.
        """
        shares = torch.bincount(torch.arange(self.images) % self.number).double() / self.images
        middle, _, high = t_interval(values)
        half = torch.full_like(middle, torch.nan) if self.kinds[name].exact else high - middle
        return torch.tensordot(shares, values, 1), half

    def refuse_unfit(self, side: Torch, at: int) -> None:
        """Raise UserError for the first measure that one fold of these images, or the network, does not allow."""
        images = images_of(side, at, self.batches)
        for name, kind in self.kinds.items():
            try:
                found = self._taken(side, images, 0, {name: kind})
            except UserError as error:
                labelled = "" if self.labels is not None else " Labels come with --labelled."
                raise UserError(
                    f"diff: measures: {name} cannot be taken of {side.name} on these images "
                    f"({str(error).rstrip('.')}). Leave it out.{labelled}"
                ) from error
            if found[name].shape != (side.layout.of("head").num_heads,):
                raise UserError(
                    f"diff: measures: {name} gives no single number of each head. Leave it out."
                )

    def _taken(self, side: Torch, images: Tensor, fold: int, kinds: Kinds) -> dict[str, Tensor]:
        """Return the values of a fold. UserError if no measure fits."""
        labels = None if self.labels is None else self.labels[fold :: self.number]
        layout = side.layout.of("head")
        built = {name: kind.make(layout) for name, kind in kinds.items()}
        with warnings.catch_warnings(action="ignore", category=MeasureWarning):
            parts = at_once(images[fold :: self.number], labels)
            found = measure(side.model, parts, list(built.values()))
        return {name: found[one.name].detach() for name, one in built.items() if one.name in found}


def both_taken(a: Torch, b: Torch, pairs: Pairs, folds: Folds) -> tuple[Values, Values]:
    """Return the values of both networks, of the measures that both allow, in the order of ``folds.kinds``."""
    before = folds.of(a, 0)
    after = taken_of(a, b, pairs, folds)
    names = [name for name in folds.kinds if name in before and name in after]
    heads = a.layout.of("head").num_heads
    first = {name: torch.stack([of.double()[:heads] for of in before[name]]) for name in names}
    return first, {name: after[name] for name in names}


def taken_of(a: Torch, b: Torch, pairs: Pairs, folds: Folds) -> Values:
    """Return the values of B, at the heads of A."""
    return {
        name: torch.stack([of_other(value, a, b, pairs) for value in of])
        for name, of in folds.of(b, 1).items()
    }


def changes(before: Values, after: Values, folds: Folds) -> dict[str, Tensor]:
    """Return for each measure (A,) ``_before``, ``_after``, ``_change``, ``_low``, ``_high`` and ``_p``.

    Of fewer than ``LEAST`` images there is no ``_p``; of measures that no image changes it is NaN,
    as are the ends. NaN for heads that B has not.
    """
    found: dict[str, Tensor] = {}
    tests: dict[str, Tensor] = {}
    for name in before:
        change, half = folds.mean(name, after[name] - before[name])
        tests[name] = p_of_interval(change, half, folds.number - 1)
        found |= {f"{name}_before": folds.mean(name, before[name])[0]}
        found |= {f"{name}_after": folds.mean(name, after[name])[0], f"{name}_change": change}
        found |= {f"{name}_low": change - half, f"{name}_high": change + half}
        found |= {f"{name}_p": tests[name]}
    if tests:
        corrected = holm(torch.cat(list(tests.values()))).chunk(len(tests))
        found |= {f"{name}_p": p for name, p in zip(tests, corrected, strict=True)}
    told = folds.images >= LEAST
    return {key: value for key, value in found.items() if told or not key.endswith("_p")}


def likeness_and_changes(columns: Mapping[str, Tensor], images: int, kinds: Kinds) -> Iterator[str]:
    """Yield a sentence on how alike outputs still are, and one on what changed in the measures.

    images: number of photographs. kinds: the measures that columns may be of.
    """
    if "svcca" in columns:
        alike, chance = columns["svcca"], columns["svcca_null"]
        known = ~alike.isnan()
        yield (
            f"The outputs of a head before and after are alike (SVCCA) by "
            f"{rounded(float(alike[known].min()))} to {rounded(float(alike[known].max()))}; on two "
            f"different images they are by {rounded(float(chance[known].mean()))}, which is chance."
        )
    if images < LEAST and any(key.endswith("_change") for key in columns):
        yield (
            f"In how many heads measures change is told from {LEAST} photographs on, here are "
            f"{images}; the table has each change with its interval."
        )
    parts = [_moves(name, kind, columns) for name, kind in kinds.items()]
    if said := [part for part in parts if part]:
        yield (
            f"Of what is measured of each head {'; '.join(said)} (p below {rounded(RATE)} after "
            f"Holm's correction over heads and measures)."
        )


def _moves(name: str, kind: Kind, columns: Mapping[str, Tensor]) -> str:
    if f"{name}_p" not in columns:
        return ""
    change = columns[f"{name}_change"]
    # of a measure that no image changes every change is sure
    sure = ~change.isnan() if kind.exact else columns[f"{name}_p"] < RATE
    called = kind.called.partition(":")[0]
    up, down = int((sure & (change > 0)).sum()), int((sure & (change < 0)).sum())
    if not up + down:
        return f"the {called} changes in no head"
    told = " (of weights alone, so without a test)" if kind.exact else ""
    return f"the {called} rises in {counted(up, 'head')} and falls in {down}{told}"
