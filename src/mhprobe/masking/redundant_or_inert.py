"""Heads that can go without loss: redundant, because a kept head is like them, or inert, because they write little?

Byun & Kim, "What does the multi-head do?", leave this question open.

Phases: a head is masked before the drop of accuracy if the step is shown to lose less than a point
(``Curve.little``), and at the drop or after it from the first later step that is significantly less
accurate than the unmasked model (``Curve.drop``). Between the two it is undecided: with fewer
images fewer heads are said to go, and not more. Every head
is compared with the same kept heads: those on just before the drop, itself left out. Heads masked
at the drop or later are needed. They are the control.

Test against chance: the largest of many similarities is large by chance too. Its null is the
largest similarity over the same pairs in each draw of the measure's null (images permuted). The
height of the similarity above its draws, in their standard deviations, is ranked among the same
heights of single draws, pooled over the heads of the curve. This assumes one law of all heads'
draws, up to place and scale. Cube roots of similarities nearly fulfil that (Wilson & Hilferty,
1931, PNAS 17:684; Jensen & Solomon, 1972, JASA 67:898: they are sums of squares). A head's smallest
p is multiplied by the number of similarities, then adjusted over the heads of the curve by
Benjamini & Hochberg's rule: of the heads called ``alike``, a share of at most ``level`` is expected
to be so by chance.

In a trained network nearly all heads are alike in this sense. So a redundant head must also stand
higher than all but a share ``level`` of the needed heads (``bar``; of fewer than twenty, than all):
what needed heads reach as well cannot explain why others can go. Without a needed head no head is
redundant. ``control`` compares the phases.

Shapes: A heads, S steps.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.parts.trace import Curve
from mhprobe.stats.significance import benjamini_hochberg, beyond

Phase = Literal["before", "undecided", "at", "after"]


class Similarities(NamedTuple):
    """Similarities of heads, (A, A), 1 for the same, NaN: not compared.

    null: (A, A) by chance; draws: (A, A, N).
    """

    value: Tensor
    null: Tensor | None = None
    draws: Tensor | None = None


class Likeness(NamedTuple):
    """The kept head most similar to a head, and their similarity.

    null: mean over draws of the largest similarity to any kept head; without draws a lower bound,
    the largest of their chance levels; None without these. error: standard error of null. p: of the
    test against chance; NaN without draws.
    """

    kept: int
    similarity: float
    null: float | None = None
    error: float = math.nan
    p: float = math.nan

    @property
    def standing(self) -> float:
        """Return the place of the similarity between chance (0) and identity (1)."""
        null = self.null or 0.0
        return (self.similarity - null) / (1 - null)


@dataclass(frozen=True)
class MaskedHead:
    """One head that a curve masks.

    likeness: by similarity; None where it was compared with no kept head. p: against chance,
    adjusted (see above); NaN without draws. write_norm: norm of what the head writes, relative to
    the residual stream; write_share: relative to the median head. alike: p is at most ``level``.
    bar: see above; NaN without a needed head.
    """

    curve: str
    split: str
    head: int
    step: int
    phase: Phase
    likeness: Mapping[str, Likeness | None]
    p: float
    write_norm: float
    write_share: float
    redundant: bool
    inert: bool
    alike: bool = False
    bar: float = math.nan

    @property
    def standing(self) -> float:
        """Return the largest place between chance (0) and identity (1), over the similarities; NaN without any."""
        return max(
            (like.standing for like in self.likeness.values() if like is not None), default=math.nan
        )

    @property
    def verdict(self) -> str:
        """redundant, inert, both or neither."""
        return (("neither", "inert"), ("redundant", "both"))[self.redundant][self.inert]


@dataclass(frozen=True)
class RedundantOrInert:
    """The question, and the measures that answer it.

    writes: makes a per-head measure of what a head adds to the residual stream. similar, distant:
        make pairwise measures, by the name they get in the table; of the latter 1 - value is the
        similarity.
    level: of the test and the bar above. inert: a head is inert if it writes less than this share
    of the median head.
    """

    writes: Callable[[HeadLayout], Any]
    similar: Mapping[str, Callable[[HeadLayout], Any]]
    distant: Mapping[str, Callable[[HeadLayout], Any]] | None = None
    level: float = 0.05
    inert: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise UserError(f"level: it is above 0 and below 1, got {self.level}.")
        if not self.similar and not self.distant:
            raise UserError("similar: name at least one pairwise measure under similar or distant.")

    def measures(self, layout: HeadLayout) -> dict[str, Any]:
        """Return the measures that are needed, by name."""
        makers = {"writes": self.writes, **self.similar, **(self.distant or {})}
        return {name: make(layout) for name, make in makers.items()}

    def answer(
        self, curves: Sequence[Curve], columns: Mapping[str, Mapping[str, Tensor]]
    ) -> list[MaskedHead]:
        """Every head that one of the curves masks, in the order of masking.

        columns: of the measures, by name.

        Empty without write norms or without any similarity.
        """
        similarities = {
            name: _similarity(columns[name], False) for name in self.similar if name in columns
        }
        similarities |= {
            name: _similarity(columns[name], True) for name in self.distant or () if name in columns
        }
        if "writes" not in columns or not similarities:
            return []
        norm = columns["writes"]["value"]
        return [
            head
            for curve in curves
            for head in masked_heads(curve, similarities, norm, self.level, self.inert)
        ]


def masked_heads(
    curve: Curve,
    similarities: Mapping[str, Similarities],
    write_norm: Tensor,
    level: float = 0.05,
    inert: float = 0.5,
) -> list[MaskedHead]:
    """Every head that a curve of one path masks, in the order of masking.

    write_norm: (A,). The rest as above.
    """
    (trace,) = curve.traces
    drop = max(curve.little, curve.drop)
    share = (write_norm / write_norm.quantile(0.5)).tolist()
    steps = {
        head: number
        for number, (old, new) in enumerate(itertools.pairwise(trace.mask), start=1)
        for head in (new & ~old).nonzero().flatten().tolist()
    }
    closest = {
        name: _closest(table, list(steps), ~trace.mask[drop - 1])
        for name, table in similarities.items()
    }
    heads = []
    for head, number in steps.items():
        likeness = {name: of_heads.get(head) for name, of_heads in closest.items()}
        p = [like.p for like in likeness.values() if like is not None and not math.isnan(like.p)]
        masked = MaskedHead(
            curve=curve.name,
            split=curve.split,
            head=head,
            step=trace.step[number],
            phase=_phase(number, curve.little, drop),
            likeness=likeness,
            p=min(1.0, min(p) * len(p)) if p else math.nan,
            write_norm=float(write_norm[head]),
            write_share=share[head],
            redundant=False,
            inert=not share[head] >= inert,
        )
        heads.append(masked)
    adjusted = benjamini_hochberg(
        torch.tensor([head.p for head in heads], dtype=torch.float64)
    ).tolist()
    bars = [_bar(heads, head, level) for head in heads]
    return [
        dataclasses.replace(
            head, p=p, bar=bar, alike=p <= level, redundant=p <= level and head.standing > bar
        )
        for head, p, bar in zip(heads, adjusted, bars, strict=True)
    ]


def _phase(number: int, little: int, drop: int) -> Phase:
    if number < little:
        return "before"
    if number < drop:
        return "undecided"
    return "at" if number == drop else "after"


def needed_heads(heads: Sequence[MaskedHead]) -> list[MaskedHead]:
    """The heads that are masked at the drop of accuracy or after it."""
    return [head for head in heads if head.phase in ("at", "after")]


def _standings(heads: Sequence[MaskedHead], needed: bool) -> list[float]:
    can_go = [head for head in heads if head.phase == "before"]
    of_phase = (head.standing for head in (needed_heads(heads) if needed else can_go))
    return sorted(standing for standing in of_phase if not math.isnan(standing))


def _bar(heads: Sequence[MaskedHead], head: MaskedHead, level: float) -> float:
    """The standing that a share ``level`` of the needed heads, without ``head``, exceeds; NaN without any."""
    needed = _standings([other for other in heads if other is not head], needed=True)
    return needed[len(needed) - 1 - math.floor(level * len(needed))] if needed else math.nan


def control(heads: Sequence[MaskedHead]) -> float:
    """One-sided p (Mann-Whitney) that heads that can go stand no higher above chance than those that can not.

    heads: of one curve. NaN where one of the two sorts is missing.
    """
    from scipy.stats import mannwhitneyu

    can, can_not = (_standings(heads, needed) for needed in (False, True))
    return (
        float(mannwhitneyu(can, can_not, alternative="greater").pvalue)
        if can and can_not
        else math.nan
    )


def _similarity(columns: Mapping[str, Tensor], distant: bool) -> Similarities:
    parts = [columns.get(name) for name in ("value", "null", "null_draws")]
    return Similarities(*(1 - part if distant and part is not None else part for part in parts))  # type: ignore[arg-type]


def _closest(similarity: Similarities, heads: Sequence[int], kept: Tensor) -> dict[int, Likeness]:
    """The kept head most similar to each head, tested against the largest similarity to any; if one was compared."""
    candidates = {head: kept & similarity.value[head].isfinite() for head in heads}
    for head, others in candidates.items():
        others[head] = False
    compared = [head for head in heads if candidates[head].any()]
    closest = [
        int(similarity.value[h].masked_fill(~candidates[h], -math.inf).argmax()) for h in compared
    ]
    value_A = similarity.value[compared, closest]
    columns: list[list[Any]] = [closest, value_A.tolist()]
    if similarity.draws is not None and compared:
        largest_AN = torch.stack(
            [similarity.draws[head, candidates[head]].amax(0) for head in compared]
        )
        error_A = largest_AN.std(1) / largest_AN.shape[1] ** 0.5
        p_A = beyond(_cube_root(value_A), _cube_root(largest_AN))
        columns += [largest_AN.mean(1).tolist(), error_A.tolist(), p_A.tolist()]
    elif similarity.null is not None:
        columns.append([float(similarity.null[head, candidates[head]].max()) for head in compared])
    return {head: Likeness(*numbers) for head, *numbers in zip(compared, *columns, strict=True)}


def _cube_root(similarity: Tensor) -> Tensor:
    """The root with the sign of the similarity: an unbiased estimate may be below 0."""
    return similarity.sign() * similarity.abs() ** (1 / 3)
