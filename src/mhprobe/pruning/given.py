"""Heads that the user names: a list, a file, a table of a run, or the decision of learned gates.

    [3, 17]                 flat indices
    heads.json, heads.txt   a JSON list of them, or numbers separated by white space
    gates.csv               a table with the columns head and kept: the heads that are not kept
    masking_curves.csv      the heads that are off at one point of a masking curve
    gates                   the heads that the run which learned the gates does not keep

Shapes: A heads of all sites.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from mhprobe.backbones import layout_of
from mhprobe.errors import UserError, quoted, refusing
from mhprobe.gates import find_gates
from mhprobe.heads import HeadLayout
from mhprobe.io.head_tables import check_layout, read_kept, read_rows
from mhprobe.stats.promise import Guarantee


class Choice(NamedTuple):
    """Heads that a user names."""

    mask: Tensor  # (A,) bool, True = goes
    rescale: bool = False  # the heads that a layer keeps are multiplied by H / kept
    chosen_by: tuple[
        str, ...
    ] = ()  # the images that chose them, "split:digest" each, as far as the file says
    scores: Tensor | None = None  # (A,) of a path that went by them


@dataclass(frozen=True)
class Given:
    """Read the heads that a user names.

    heads: see above. Of a masking curve also its name, ``curve``, if the table has several, and
    step or remove; UserError for one of them beside heads that are named otherwise.
    threshold: with heads=gates, remove heads with |gate| at or below it. guarantee: remove all
    heads if it holds without them, else none. seed: of the order of its images.
    kept: (A,) bool, decision of the run that learned the gates; None if the weights have none.
    """

    heads: Any
    curve: str | None = None
    step: int | None = None
    remove: int | None = None
    threshold: float | None = None
    guarantee: Guarantee | None = None
    seed: int = 0
    kept: Tensor | None = None

    def choose(self, model: nn.Module) -> Choice:
        """Choose heads."""
        layout = layout_of(model)
        if self.threshold is not None and self.heads != "gates":
            raise UserError(
                f"threshold: it is of heads=gates, got heads={quoted(self.heads)}. Leave one of "
                "them out."
            )
        if not str(self.heads).endswith(".csv"):
            self._refuse_point("heads names the heads itself")
        if isinstance(self.heads, list | tuple):
            choice = Choice(_listed(layout, list(self.heads), "heads"))
        elif not isinstance(self.heads, str):
            raise UserError(
                "heads: expected a list as in [3,17], a file, a table or gates, got "
                f"{quoted(self.heads)}."
            )
        elif self.heads == "gates":
            choice = Choice(_closed(model, layout, self.kept, self.threshold))
        elif Path(self.heads).suffix == ".csv":
            choice = self._table(self.heads, layout)
        else:
            choice = Choice(_listed(layout, _numbers(self.heads), f"heads: {self.heads}"))
        if not choice.mask.any():
            raise UserError(f"heads: {self.heads} names no head, so nothing would be removed.")
        return choice

    def _refuse_point(self, why: str) -> None:
        """Raise UserError for a point of a curve beside heads that are of none."""
        for name in ("curve", "step", "remove"):
            if (value := getattr(self, name)) is not None:
                raise UserError(
                    f"{name}: is of a table of masking curves, and {why}; got {quoted(value)}. "
                    "Leave one of them out."
                )

    def _table(self, path: str, layout: HeadLayout) -> Choice:
        rows = read_rows(path, (), "heads")
        if "kept" in rows[0]:
            self._refuse_point(f"{path} says by itself which heads are kept")
            chosen_by = tuple(rows[0].get("chosen_by", "").split())
            return Choice(~read_kept(path, layout, "heads"), chosen_by=chosen_by)
        if not {"curve", "step", "heads_masked", "masked"} <= set(rows[0]):
            raise UserError(
                f"heads: {path} has the columns {', '.join(rows[0])}; expected head and kept, or "
                "those of "
                "masking_curves.csv. To remove the lowest in a table of scores: prune=order "
                "prune/order=by_table "
                f"with this table and remove=<how many>."
            )
        check_layout(path, rows, layout, "heads")
        row = self._point(path, rows)
        masked = _listed(layout, row["masked"].split(), f"heads: {path}, column masked")
        if row["heads_masked"] != str(int(masked.sum())):
            raise UserError(
                f"heads: {path}: the column masked names {int(masked.sum())} heads at this point, "
                "heads_masked "
                f"says {quoted(row['heads_masked'])}. Was the file edited?"
            )
        split = row.get("chosen_on", "")
        chosen_by = (f"{split}:{row.get('chosen_by', '')}",) if split else ()
        return Choice(masked, row.get("rescale", "") in ("1", "True"), chosen_by)

    def _point(self, path: str, rows: list[dict[str, str]]) -> dict[str, str]:
        option, column, wanted = self._asked()
        name = self._name_of_curve(path, rows)
        # a mean over random repeats names no heads; of several repeats the first is taken
        points = [
            row for row in rows if row["curve"] == name and (row["masked"] or row["step"] == "0")
        ]
        if wrong := [row[column] for row in points if not _whole(row[column])]:
            raise UserError(
                f"heads: {path}, column {column}: expected whole numbers, got {quoted(wrong[0])}."
            )
        numbers = [int(row[column]) for row in points]
        if wanted not in numbers:
            nearest = min(numbers, key=lambda number: abs(number - wanted), default="none")
            raise UserError(
                f"{option}: {name} in {path} has no point with {wanted}; the nearest is {nearest}."
            )
        return points[numbers.index(wanted)]

    def _asked(self) -> tuple[str, str, int]:
        """Return the option that names the point, its column in the table, and its number there."""
        if self.step is not None and self.remove is None:
            return "step", "step", self.step
        if self.remove is not None and self.step is None:
            return "remove", "heads_masked", self.remove
        raise UserError(
            "step: give either step (a point of the curve) or remove (the number of heads off)."
        )

    def _name_of_curve(self, path: str, rows: list[dict[str, str]]) -> str:
        """Return the curve that was asked for, or the only one of the table."""
        names = sorted({row["curve"] for row in rows})
        name = self.curve if self.curve is not None or len(names) > 1 else names[0]
        if name not in names:
            raise UserError(
                f"curve: {path} has {', '.join(names)}, got {name}. Give curve=<one of them>."
            )
        return name


def _listed(layout: HeadLayout, heads: list[Any], where: str) -> Tensor:
    numbers = [int(head) if isinstance(head, str) and _whole(head) else head for head in heads]
    wrong = [head for head in numbers if type(head) is not int or not 0 <= head < layout.num_heads]
    if wrong:
        raise UserError(
            f"{where}: expected whole numbers from 0 to {layout.num_heads - 1}, got "
            f"{quoted(wrong[0])}."
        )
    return layout.mask(numbers, where)


def _whole(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _numbers(path: str) -> list[Any]:
    where, expected = (
        f"heads: cannot read {path}",
        "Expected a list as in [3,17], a file, a table or gates.",
    )
    with refusing(
        lambda error: f"{where} ({getattr(error, 'strerror', None) or error}). {expected}"
    ):
        text = Path(path).read_text()
    if Path(path).suffix != ".json":
        return list(text.split())
    try:
        heads = json.loads(text)
    except (ValueError, RecursionError):
        heads = None
    if not isinstance(heads, list):
        raise UserError(f"heads: {path} holds no list, expected one of head indices: [3, 17].")
    return heads


def _closed(
    model: nn.Module, layout: HeadLayout, kept: Tensor | None, threshold: float | None
) -> Tensor:
    if kept is not None and threshold is None:
        if bool(kept.all()):
            raise UserError(
                f"heads: the run that learned the gates keeps all {len(kept)} heads. Train with a "
                "higher "
                f"weight of the gates' penalty, or give a threshold."
            )
        heads = layout.of("head").mask(~kept, "heads")
        return functional.pad(heads, (0, layout.num_heads - len(heads)))  # neurons stay
    gates = find_gates(model)
    if gates is None or bool((gates.effective() == 1).all()):
        raise UserError(
            "heads: the weights have no learned gates; all are 1. Train with gates=<...> first."
        )
    size = gates.effective().abs().cpu()
    mask = size <= (threshold or 0.0)
    if not mask.any():
        raise UserError(
            f"threshold: no gate is at or below {threshold or 0.0}; the nearest is "
            f"{size.min():.4g}."
        )
    return mask
