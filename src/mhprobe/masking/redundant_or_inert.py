"""Heads that can go without loss: redundant, because a kept head is like them, or inert, because they write little?

Byun & Kim, "What does the multi-head do?", ask this and leave it open.

Along a curve the heads fall into three phases: masked before the accuracy drops, at the drop, and after it. The drop is
the first step at which the accuracy is significantly lower than the unmasked model's (p_holm < 0.05). Where that was
not tested, it is the first step at which the accuracy is more than a point lower.

Every head is compared with the same heads: those still there just before the drop, itself left out. So the three phases
can be compared. Heads that can not go (at the drop, after it) are the control: a similarity that they reach as well
does not explain why the heads of the first phase can go.

The largest of many similarities is large by chance too. So it is tested against the null of that largest one: the
largest over the same pairs in every draw of the similarity's null (images permuted). How far it stands above these
draws, in their spread, is compared with how far single draws stand above the others, over all heads of the curve. So no
law is assumed (the largest of many is skewed), and p is at least one over the number of heads times draws. That takes
the draws of all heads for draws of one law, up to place and scale. Similarities of chance are sums of squares, which
are the more skewed the fewer directions rule them; their cube roots all have nearly the same shape (Wilson & Hilferty,
1931, PNAS 17:684; Jensen & Solomon, 1972, JASA 67:898), so cube roots are compared.

That p, times the number of similarities and adjusted over the heads of the curve, says whether a head shares more than
chance with a kept one. The adjustment is Benjamini and Hochberg's: the verdicts make a list, and at most a share
``level`` of it is expected to be there by chance. (Holm's rule would guard against a single wrong entry.)

In a trained network nearly all heads share more than chance. So a redundant head has to pass a second test: it stands
higher than the heads that can not go, all but a share ``level`` of them (``bar``; of fewer than twenty, than all). For
a similarity that needed heads reach as well cannot be why other heads can go. Where no head that can not go was
compared, no head is called redundant. ``control`` tests the phases against each other.

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
from mhprobe.masking.parts.trace import Curve, first
from mhprobe.stats.significance import benjamini_hochberg, beyond

Phase = Literal["before", "at", "after"]


class Similarity(NamedTuple):
    """Similarities of heads and their chance level.

    value: (A, A), 1 for the same; NaN for pairs that were not compared.
    null: (A, A) what chance gives. draws: (A, A, N) single draws of that. None where there are none.
    """

    value: Tensor
    null: Tensor | None = None
    draws: Tensor | None = None


class Likeness(NamedTuple):
    """The kept head most like a head, and how like it is.

    null: what the largest similarity over the same kept heads is by chance, on average; where the measure gives no
    draws, the largest of their chance levels, which is a lower bound; None where there is none. error: of null, its
    standard error over the draws. p: that a largest similarity like this one is chance; NaN where there are no draws.
    """

    kept: int
    similarity: float
    null: float | None = None
    error: float = math.nan
    p: float = math.nan

    @property
    def standing(self) -> float:
        """Return the height between chance (0) and identity (1)."""
        null = self.null or 0.0
        return (self.similarity - null) / (1 - null)


@dataclass(frozen=True)
class MaskedHead:
    """One head of one curve.

    likeness: by similarity; None where it was compared with no kept head. p: that its likeness to kept heads is chance,
    over all similarities and adjusted over the heads of the curve; NaN where no similarity has a null that can be
    tested. write_norm: what it writes into the residual stream, relative to the stream. write_share: the same relative
    to the median head. alike: more than chance, by p. bar: where heads that can not go stand (see above), NaN
    without any.
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
        """Return the largest height between chance (0) and identity (1), over the similarities; NaN without any."""
        return max((like.standing for like in self.likeness.values() if like is not None), default=math.nan)

    @property
    def verdict(self) -> str:
        """redundant, inert, both or neither."""
        if self.redundant:
            return "both" if self.inert else "redundant"
        return "inert" if self.inert else "neither"


@dataclass(frozen=True)
class RedundantOrInert:
    """The question, and the measures that answer it.

    writes: makes a per-head measure of what a head adds to the residual stream. similar, distant: make pairwise
        measures, by the name they get in the table; of the latter 1 - value is the similarity.
    level: of the test and of the bar behind "redundant", explained above. inert: a head is inert if it writes less
        than this share of the median over all heads.
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

    def answer(self, curves: Sequence[Curve], columns: Mapping[str, Mapping[str, Tensor]]) -> list[MaskedHead]:
        """Every head that one of the curves masks, in the order of masking. columns: of the measures, by name.

        Empty without write norms or without any similarity.
        """
        similarities = {name: _similarity(columns[name], False) for name in self.similar if name in columns}
        similarities |= {name: _similarity(columns[name], True) for name in self.distant or () if name in columns}
        if "writes" not in columns or not similarities:
            return []
        norm = columns["writes"]["value"]
        return [head for curve in curves for head in masked_heads(curve, similarities, norm, self.level, self.inert)]


def masked_heads(
    curve: Curve,
    similarities: Mapping[str, Similarity],
    write_norm: Tensor,
    level: float = 0.05,
    inert: float = 0.5,
) -> list[MaskedHead]:
    """Every head that a curve of one path masks, in the order of masking. write_norm: (A,). The rest as above."""
    (trace,) = curve.traces
    drop = first(curve.falls if curve.worse is None else curve.worse)
    kept = ~trace.mask[drop - 1]
    share = (write_norm / write_norm.median()).tolist()
    steps = list(enumerate(itertools.pairwise(trace.mask), start=1))
    heads = [(head, number) for number, (old, new) in steps for head in (new & ~old).nonzero().flatten().tolist()]
    flat = [head for head, _ in heads]
    likeness = {name: _closest(similarity, flat, kept) for name, similarity in similarities.items()}
    found = []
    for place, (head, number) in enumerate(heads):
        own = {name: likenesses[place] for name, likenesses in likeness.items()}
        p = [like.p for like in own.values() if like is not None and not math.isnan(like.p)]
        masked = MaskedHead(
            curve=curve.name,
            split=curve.split,
            head=head,
            step=trace.step[number],
            phase="before" if number < drop else "at" if number == drop else "after",
            likeness=own,
            p=min(1.0, min(p) * len(p)) if p else math.nan,
            write_norm=float(write_norm[head]),
            write_share=share[head],
            redundant=False,
            inert=not share[head] >= inert,
        )
        found.append(masked)
    adjusted = benjamini_hochberg(torch.tensor([head.p for head in found], dtype=torch.float64)).tolist()
    bars = [_bar(found, head, level) for head in found]
    return [
        dataclasses.replace(head, p=p, bar=bar, alike=p <= level, redundant=p <= level and head.standing > bar)
        for head, p, bar in zip(found, adjusted, bars, strict=True)
    ]


def _bar(heads: Sequence[MaskedHead], head: MaskedHead, level: float) -> float:
    """Return the height that only a share ``level`` of the needed heads exceeds; NaN without any."""
    others = [each.standing for each in heads if each.phase != "before" and each is not head]
    known = sorted(standing for standing in others if not math.isnan(standing))
    return known[len(known) - 1 - math.floor(level * len(known))] if known else math.nan


def control(heads: Sequence[MaskedHead]) -> float:
    """One-sided p (Mann-Whitney) that heads that can go stand no higher above chance than those that can not.

    heads: of one curve. NaN where one of the two sorts is missing.
    """
    from scipy.stats import mannwhitneyu

    can = [head.standing for head in heads if head.phase == "before" and not math.isnan(head.standing)]
    can_not = [head.standing for head in heads if head.phase != "before" and not math.isnan(head.standing)]
    if not can or not can_not:
        return math.nan
    return float(mannwhitneyu(can, can_not, alternative="greater").pvalue)


def _similarity(columns: Mapping[str, Tensor], distant: bool) -> Similarity:
    found = Similarity(columns["value"], columns.get("null"), columns.get("null_draws"))
    return Similarity(*(None if part is None else 1 - part for part in found)) if distant else found  # type: ignore[arg-type]


def _closest(similarity: Similarity, heads: Sequence[int], kept: Tensor) -> list[Likeness | None]:
    """For each head the kept head most like it, against the null of the largest likeness to any of them."""
    candidates = {head: kept & similarity.value[head].isfinite() for head in heads}
    for head, others in candidates.items():
        others[head] = False
    compared = [head for head in heads if candidates[head].any()]
    closest = [int(similarity.value[h].masked_fill(~candidates[h], -math.inf).argmax()) for h in compared]
    value_A = similarity.value[compared, closest]
    if similarity.draws is None or not compared:
        null = similarity.null
        levels = [None if null is None else float(null[head, candidates[head]].max()) for head in compared]
        likeness = [Likeness(*each) for each in zip(closest, value_A.tolist(), levels, strict=True)]
    else:
        largest_AN = torch.stack([similarity.draws[head, candidates[head]].amax(0) for head in compared])
        error_A = largest_AN.std(1) / largest_AN.shape[1] ** 0.5
        columns = (value_A, largest_AN.mean(1), error_A, beyond(_cube_root(value_A), _cube_root(largest_AN)))
        likeness = [Likeness(*each) for each in zip(closest, *(column.tolist() for column in columns), strict=True)]
    found = dict(zip(compared, likeness, strict=True))
    return [found.get(head) for head in heads]


def _cube_root(similarity: Tensor) -> Tensor:
    """The root with the sign of the similarity: an unbiased estimate may be below 0."""
    return similarity.sign() * similarity.abs() ** (1 / 3)
