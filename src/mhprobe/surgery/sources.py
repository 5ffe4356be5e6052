"""Where a mask comes from: a list, a file, a masking curve, scores of heads, learned gates, a search.

Each source is a frozen dataclass that a yaml of conf/prune/ names; its fields are its options. ``choose`` is given the
model as it is now. A source that ``looks_again`` can be asked several times while heads are removed in rounds, and
decides anew each time; the others are asked once, about the model that was loaded.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, input_spec
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.gates import find_gates
from mhprobe.heads import HeadLayout
from mhprobe.io.head_tables import read_kept
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import score_heads
from mhprobe.surgery.costs import count_flops, head_flops
from mhprobe.surgery.fisher import gate_fisher, rearrange, search, search_flops


@dataclass(frozen=True)
class View:
    """What a source may look at: the model (with its gates), its heads, and batches of images to estimate from.

    kept: (A,) bool, the binary decision of the run that learned the gates; None if the weights come with none.
    """

    model: nn.Module
    layout: HeadLayout
    batches: Callable[[], Iterable[Batch]]
    kept: Tensor | None = None


class Source(Protocol):
    """Chooses the heads that go.

    remove: how many heads in all. Of a source that looks again; ``choose`` is then asked for ``remove`` of this round.
    """

    looks_again: ClassVar[bool]

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        """(A,) bool mask of ``view.model``'s heads, True = goes. remove: this many, instead of the option's."""
        ...


@dataclass(frozen=True)
class Heads:
    """These heads. heads: flat indices."""

    heads: Sequence[int]
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        return view.layout.mask(list(self.heads))


@dataclass(frozen=True)
class HeadsFile:
    """The heads a file lists: flat indices, as a JSON list or separated by white space."""

    path: str
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        text = _read(self.path)
        try:
            heads = json.loads(text) if Path(self.path).suffix == ".json" else [int(word) for word in text.split()]
            if not isinstance(heads, list) or any(type(head) is not int for head in heads):
                raise ValueError
        except ValueError:
            raise UserError(
                f"prune.mask.path: {self.path} holds no list of head indices, expected whole numbers from 0 to "
                f"{view.layout.num_heads - 1}: [3, 17] in a .json, 3 17 in other files."
            ) from None
        return view.layout.mask(heads)


@dataclass(frozen=True)
class KeptTable:
    """The heads that a table with the columns ``head`` and ``kept`` does not keep, as other runs write it."""

    table: str
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        return ~read_kept(self.table, view.layout)


@dataclass(frozen=True)
class CurvePoint:
    """The heads that are off at one point of a masking curve.

    table: masking_curves.csv of mhprobe.mask. curve: its name, where the table has several.
    step: the point's number. remove: or, instead, how many heads are off there.
    """

    table: str
    curve: str | None = None
    step: int | None = None
    remove: int | None = None
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        if (self.step is None) == (self.remove is None):
            raise UserError("prune.mask: of a curve give step (its point) or remove (how many heads are off there).")
        rows = _table(self.table, ("curve", "step", "heads_masked", "masked"))
        names = sorted({row["curve"] for row in rows})
        name = self.curve if self.curve is not None or len(names) > 1 else names[0]
        if name not in names:
            raise UserError(f"prune.mask.curve: {self.table} has {', '.join(names)}, got {name}.")
        # a mean over random repeats names no heads; of several repeats the first is taken
        points = [row for row in rows if row["curve"] == name and (row["masked"] or row["step"] == "0")]
        column, wanted = ("heads_masked", self.remove) if self.step is None else ("step", self.step)
        assert wanted is not None
        there = sorted({int(row[column]) for row in points})
        if wanted not in there:
            nearest = min(there, key=lambda number: abs(number - wanted), default="none")
            option = "remove" if self.step is None else "step"
            raise UserError(
                f"prune.mask.{option}: {name} in {self.table} has no point with {option}={wanted}; the nearest is "
                f"{nearest}."
            )
        row = next(row for row in points if int(row[column]) == wanted)
        return view.layout.mask([int(head) for head in row["masked"].split()])


@dataclass(frozen=True)
class ScoreTable:
    """The ``remove`` heads of lowest score in a table with one row per head, as every per-head measure writes it.

    table: a .csv with a column ``head`` (flat index). column: which score. lowest: False removes the highest instead.
    """

    table: str
    remove: int
    column: str = "value"
    lowest: bool = True
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        rows = _table(self.table, ("head", self.column))
        try:
            scores = {int(row["head"]): float(row[self.column]) for row in rows}
        except ValueError as error:
            raise UserError(f"prune.mask.column: {self.column} in {self.table} is not a score ({error}).") from None
        heads = view.layout.num_heads
        if len(rows) != heads or set(scores) != set(range(heads)):
            raise UserError(
                f"prune.mask.table: {self.table} has {len(rows)} rows for {len(scores)} heads, expected one for each "
                f"of the model's {heads} heads. Was it made for another model?"
            )
        values = torch.tensor([scores[head] for head in range(heads)], dtype=torch.float64)
        return lowest(view.layout, values if self.lowest else -values, self.remove, self.table)


@dataclass(frozen=True)
class LearnedGates:
    """Heads that the run which learned the gates does not keep, as the weights file says.

    threshold: or those whose gate is at or below, 0 where the file does not say. remove: or so many smallest. |gate|
    counts.
    """

    threshold: float | None = None
    remove: int | None = None
    looks_again: ClassVar[bool] = False

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        if view.kept is not None and self.threshold is None and self.remove is None:
            if bool(view.kept.all()):
                raise UserError(
                    f"prune.mask: the run that learned the gates keeps all {len(view.kept)} heads. Train with a higher "
                    f"gates.penalty.weight, or give prune.mask.threshold or prune.mask.remove."
                )
            return ~view.kept
        gates = find_gates(view.model)
        size = torch.ones(view.layout.num_heads) if gates is None else gates.effective().abs().cpu()
        if bool((size == 1).all()):
            raise UserError("prune.mask: the weights have no learned gates; all are 1. Train with gates=<...> first.")
        if self.remove is not None:
            return lowest(view.layout, size, self.remove, "the gates")
        _finite(view.layout, size, "the gates")
        threshold = self.threshold or 0.0
        mask = size <= threshold
        if not mask.any():
            raise UserError(
                f"prune.mask.threshold: no gate is at or below {threshold}; the nearest is {size.min().item():.4g}."
            )
        return mask


@dataclass(frozen=True)
class LowestScore:
    """The ``remove`` heads of lowest score by a measure, estimated here on ``prune.images`` training images.

    measure: makes the measure from a layout. column: which of its columns.
    """

    measure: Callable[[HeadLayout], Measure]
    remove: int
    column: str = "value"
    looks_again: ClassVar[bool] = True

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        attach(view.model)
        measure = self.measure(view.layout)
        scores = score_heads(view.model, measure, view.batches, self.column)
        return lowest(view.layout, scores, self.remove if remove is None else remove, measure.name)


@dataclass(frozen=True)
class FisherSearch:
    """Heads whose removal costs least by the Fisher information of the gates (surgery/fisher.py).

    remove: how many heads go. flops: or, instead, the share of the model's FLOPs that may be left.
    rearranged: also exchange heads within each layer, so that of two twins only one goes.
    """

    remove: int | None = None
    flops: float | None = None
    rearranged: bool = True
    looks_again: ClassVar[bool] = True

    def choose(self, view: View, remove: int | None = None) -> Tensor:
        if (self.remove is None) == (self.flops is None):
            raise UserError("prune.mask: of a Fisher search give remove (heads) or flops (the share that may be left).")
        remove = self.remove if remove is None else remove
        if remove is not None:
            _removable(view.layout, remove)
        elif not 0 < self.flops < 1:  # type: ignore[operator]
            raise UserError(f"prune.mask.flops: expected a share between 0 and 1, got {self.flops}.")
        fisher = gate_fisher(view.model, view.batches())
        _finite(view.layout, fisher.diagonal(), "Fisher information")
        if remove is not None:
            mask = search(fisher, remove)
        else:
            assert self.flops is not None
            image = torch.zeros(1, 3, *input_spec(view.model)["size"], device=next(view.model.parameters()).device)
            whole = count_flops(view.model, image)
            mask = search_flops(fisher, head_flops(view.model, view.layout), (1 - self.flops) * whole)
        return rearrange(view.layout, fisher, mask) if self.rearranged else mask


def lowest(layout: HeadLayout, scores_A: Tensor, remove: int, where: str) -> Tensor:
    """(A,) bool mask of the ``remove`` lowest scores; ties go to the lower index. NaN is refused."""
    _removable(layout, remove)
    _finite(layout, scores_A, where)
    mask = torch.zeros(layout.num_heads, dtype=torch.bool)
    mask[scores_A.argsort(stable=True)[:remove]] = True
    return mask


def _removable(layout: HeadLayout, remove: int) -> None:
    if not 0 <= remove < layout.num_heads:
        raise UserError(
            f"prune.mask.remove: of {layout.num_heads} heads 0 to {layout.num_heads - 1} can go, got {remove}; the "
            f"nearest is {min(max(remove, 0), layout.num_heads - 1)}."
        )


def _finite(layout: HeadLayout, scores_A: Tensor, where: str) -> None:
    bad = torch.nonzero(~scores_A.isfinite()).flatten()
    if len(bad):
        _, head, site = list(layout)[int(bad[0])]
        raise UserError(
            f"prune.mask: {where} has the score {scores_A[bad[0]].item()} for head {head} of {site.name} (and "
            f"{len(bad) - 1} more that are not finite), expected a number for every head."
        )


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prune.mask: {path} cannot be read ({getattr(error, 'strerror', None) or error}).") from error


def _table(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    rows = list(csv.DictReader(_read(path).splitlines()))
    if not rows or (missing := set(columns) - set(rows[0])):
        got = "no rows" if not rows else f"no column {', '.join(sorted(missing))}"
        raise UserError(f"prune.mask.table: {path} has {got}, expected a .csv with {', '.join(columns)}.")
    if any(None in row.values() for row in rows):
        raise UserError(f"prune.mask.table: {path} has a row that ends early. Was it cut off?")
    return rows
