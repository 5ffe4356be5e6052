"""Heads that can go without loss: redundant, because a kept head is like them, or inert, because they write little?

Byun & Kim, "What does the multi-head do?", ask this and leave it open.

Along a curve the heads fall into three phases: masked before the accuracy drops, at the drop, and after it. The drop is
the first step at which the accuracy is significantly lower than the unmasked model's (p_holm < 0.05). Where that was
not tested, it is the first step at which the accuracy is more than a point lower.

Every head is compared with the same heads: those still there just before the drop, itself left out. So the three phases
can be compared. Heads that can not go (at the drop, after it) are the control: a similarity that they reach as well
does not explain why the heads of the first phase can go.

The largest of many similarities is large by chance too. So it is read against the largest of the chance levels of the
same pairs. This is a lower bound of the right level: the largest of means lies below the mean of the largest.

Shapes: A heads, S steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.masking.trace import Curve, first

Phase = Literal["before", "at", "after"]


class Similarity(NamedTuple):
    """value: (A, A), 1 for the same; NaN for pairs that were not compared. null: (A, A) what chance gives; or None."""

    value: Tensor
    null: Tensor | None = None


class Likeness(NamedTuple):
    """The kept head most like a head, how like it is, and the chance level (None where there is none)."""

    kept: int
    similarity: float
    null: float | None

    @property
    def standing(self) -> float:
        """How far up from chance (0) to identity (1)."""
        null = self.null or 0.0
        return (self.similarity - null) / (1 - null)


@dataclass(frozen=True)
class MaskedHead:
    """One head of one curve.

    likeness: by similarity; None where it was compared with no kept head. write_norm: what it writes into the residual
    stream, relative to the stream. write_share: the same relative to the median head.
    """

    curve: str
    split: str
    head: int
    step: int
    phase: Phase
    likeness: Mapping[str, Likeness | None]
    write_norm: float
    write_share: float
    redundant: bool
    inert: bool

    @property
    def verdict(self) -> str:
        """redundant, inert, both or neither."""
        if self.redundant and self.inert:
            return "both"
        return "redundant" if self.redundant else "inert" if self.inert else "neither"


@dataclass(frozen=True)
class RedundantOrInert:
    """The question, and the measures that answer it.

    writes: makes a per-head measure of what a head adds to the residual stream. similar, distant: make pairwise
        measures, by the name they get in the table; of the latter 1 - value is the similarity.
    redundant: a head is redundant if, by any similarity, it stands this far up from chance (0) to identity (1) to a
        kept head. inert: a head is inert if it writes less than this share of the median over all heads.
    """

    writes: Callable[[HeadLayout], Any]
    similar: Mapping[str, Callable[[HeadLayout], Any]]
    distant: Mapping[str, Callable[[HeadLayout], Any]] | None = None
    redundant: float = 0.5
    inert: float = 0.5

    def __post_init__(self) -> None:
        if not self.similar and not self.distant:
            raise UserError("masking.join: name at least one pairwise measure under similar or distant.")

    def measures(self, layout: HeadLayout) -> dict[str, Any]:
        """What has to be measured, by name."""
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
        return [
            head for curve in curves for head in masked_heads(curve, similarities, norm, self.redundant, self.inert)
        ]


def masked_heads(
    curve: Curve,
    similarities: Mapping[str, Similarity],
    write_norm: Tensor,
    redundant: float = 0.5,
    inert: float = 0.5,
) -> list[MaskedHead]:
    """Every head that a curve of one path masks, in the order of masking. write_norm: (A,). The rest as above."""
    (trace,) = curve.traces
    drop = first(curve.falls if curve.worse is None else curve.worse)
    kept = ~trace.mask[drop - 1]
    share = (write_norm / write_norm.median()).tolist()
    found = []
    for number, (before, after) in enumerate(itertools.pairwise(trace.mask), start=1):
        for head in torch.nonzero(after & ~before).flatten().tolist():
            likeness = {name: _closest(similarity, head, kept) for name, similarity in similarities.items()}
            standing = max((like.standing for like in likeness.values() if like is not None), default=0.0)
            found.append(
                MaskedHead(
                    curve=curve.name,
                    split=curve.split,
                    head=head,
                    step=trace.step[number],
                    phase="before" if number < drop else "at" if number == drop else "after",
                    likeness=likeness,
                    write_norm=float(write_norm[head]),
                    write_share=share[head],
                    redundant=standing >= redundant,
                    inert=not share[head] >= inert,
                )
            )
    return found


def _similarity(columns: Mapping[str, Tensor], distant: bool) -> Similarity:
    value, null = columns["value"], columns.get("null")
    return Similarity(1 - value, None if null is None else 1 - null) if distant else Similarity(value, null)


def _closest(similarity: Similarity, head: int, kept: Tensor) -> Likeness | None:
    """The kept head most like ``head``, and the highest chance level among those it was compared with."""
    candidates = kept & similarity.value[head].isfinite()
    candidates[head] = False
    if not candidates.any():
        return None
    closest = int(similarity.value[head].masked_fill(~candidates, -math.inf).argmax())
    null = None if similarity.null is None else float(similarity.null[head][candidates].max())
    return Likeness(closest, float(similarity.value[head, closest]), null)
