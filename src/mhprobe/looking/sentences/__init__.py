"""Sentences on a network's heads, each with its number, its 95 % interval over photographs, and what chance would give.

A rule is a file of this package with a ``tell(facts)``; it is found by its being there. ``ORDER`` is its place. A rule
that names heads says by ``Claim`` which are sure, and which would need more photographs.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.written import counted
from mhprobe.looking.facts import Columns, Facts

NAMED = 3  # heads that a sentence names


class Claim(NamedTuple):
    """A statement on every head: its value lies beyond a threshold.

    what: the statement, as in "may look at one offset". sure (A,) bool: the whole interval lies beyond. needed
    (A,): about so many photographs would decide it; NaN where it is decided.
    """

    what: str
    sure: Tensor
    needed: Tensor


class Sentence(NamedTuple):
    """Words about a network. heads: which it is about, by flat index, those that it names first."""

    text: str
    heads: tuple[int, ...] = ()
    claim: Claim | None = None


def sentences(facts: Facts) -> list[Sentence]:
    """Sentences that can be told, in order; last what could not, and what it takes."""
    told: list[Sentence] = []
    silent: list[str] = []
    for rule in rules():
        try:
            told += rule.tell(facts)
        except UserError as error:
            silent.append(f"{rule.QUESTION} ({str(error).rstrip('.')})")
    return [*(each for each in told if each.text), *_untold([each.claim for each in told if each.claim], silent, facts)]


def rules() -> list[Any]:
    """Every rule of this package, in order."""
    found = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    return sorted(found, key=lambda rule: rule.ORDER)


def claim(what: str, value: Tensor, low: Tensor, high: Tensor, threshold: Tensor | float, images: int) -> Claim:
    """The statement that value is above ``threshold``; give everything negated for one that it is below.

    An interval shrinks as one over the square root of the number of images.
    """
    beyond = torch.as_tensor(threshold, dtype=value.dtype).expand_as(value)
    open_ = (low < beyond) & (high >= beyond)
    half, gap = (high - low) / 2, (value - beyond).abs()
    return Claim(what, low >= beyond, torch.where(open_, (images * (half / gap) ** 2).ceil(), torch.nan))


def strongest(sure: Tensor, by: Tensor) -> tuple[int, ...]:
    """Flat indices of the heads that are sure, the largest value first."""
    (heads,) = torch.nonzero(sure, as_tuple=True)
    return tuple(heads[by[heads].argsort(descending=True, stable=True)].tolist())


def measured(columns: Columns, at: int | tuple[int, int], form: Callable[[float], str], *against: str) -> str:
    """e.g. ``97 % (95 % interval 95 % to 98 %; by chance 0.4 %)``. against: what it is to be held against."""
    value, low, high = (form(float(columns[name][at])) for name in ("value", "low", "high"))
    return f"{value} ({'; '.join([f'95 % interval {low} to {high}', *against])})"


def head_name(layout: HeadLayout, head: int) -> str:
    """e.g. ``block 3 head 5``, or with the stage where there are several."""
    _, index, site = list(layout)[head]
    stage = f"stage {site.stage} " if layout.num_stages > 1 else ""
    return f"{stage}block {site.block} head {index}"


def share_of(heads: Sequence[int], layout: HeadLayout) -> str:
    """e.g. ``5 of 72 heads``."""
    return f"{len(heads)} of {counted(layout.num_heads, 'head')}"


def _untold(claims: Sequence[Claim], silent: Sequence[str], facts: Facts) -> list[Sentence]:
    """One sentence on heads whose interval holds the threshold, and on rules without what they need."""
    parts = []
    for each in claims:
        undecided = each.needed[~each.needed.isnan()]
        if facts.images > 1 and len(undecided):
            many = int(min(undecided.median().item(), 10_000))
            heads = counted(len(undecided), "more head")
            half = "" if len(undecided) == 1 else " for half of them"
            told = f"about {many:,} photographs would tell{half}"
            parts.append(f"{heads} may or may not {each.what} ({told})")
    if facts.images < 2:
        parts.append("what holds beyond one photograph: intervals need at least 2, better 12")
    parts += silent
    return (
        [Sentence(f"Could not be told from {counted(facts.images, 'photograph')}: {'; '.join(parts)}.")]
        if parts
        else []
    )
