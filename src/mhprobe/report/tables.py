"""Tidy tables: one row per head, per pair of heads, or per point of a masking curve.

Numbers are written so that they read back to the same bits.

Shapes: A heads of all sites, S sites.
"""

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.head_tables import DIGEST
from mhprobe.masking.parts.trace import Curve, Points, Totals
from mhprobe.masking.redundant_or_inert import MaskedHead

CURVE_COLUMNS = (
    *("curve", "split", "step", "heads_masked", "unit", "masked", "accuracy", "loss", "low", "high"),
    *("p", "p_holm", "delta", "delta_low", "delta_high", "spent", "exhaustive", "seed"),
    *("search", "chosen_on", "chosen_by", "rescale", "fill", "score", DIGEST),
)


MeasureKind = Literal["per_head", "pairwise", "pairwise_layers"]
Kind = Literal[
    "per_head",  # a row per head
    "per_head_along",  # and a column per name: a class, a step, an offset
    "pairwise",  # a row per pair of heads
    "pairwise_along",
    "pairwise_layers",  # a row per pair of layers
    "pairwise_blocks",  # pairs of heads, summed up per pair of blocks
    "history",  # a row per head and point of a training
    "gate_history",  # a row per step of a training, a column per gate
    "curves",  # a row per point of a masking curve
    "totals",  # a row per masking curve and split
    "stages",  # a row per stage of a pruning
    "speed",  # a row per mask and batch size
    "maps",  # a row per image and map
    "claims",  # a row per finding of the literature
    "table",  # anything else
]


class Table(NamedTuple):
    """Column names, and rows of plain Python values in that order. kind: what a row is."""

    columns: list[str]
    rows: list[list[Any]]
    kind: Kind = "table"

    def column(self, name: str) -> list[Any]:
        """One column's cells."""
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows, each by the names of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def per_head(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head (flat index), site, stage, block, index (within the site), then the columns of shape (A,) or (), and layout.

    Where there are neurons, ``head`` numbers all units, and behind ``index`` stands their ``kind``.

    layout names the heads (``HeadLayout.digest``), so that a table is not taken for that of another model. A () column
    is a fact about the whole set and repeats in every row. Other shapes belong to no table.
    """
    facts = {name: values for name, values in columns.items() if values.shape in ((), (layout.num_heads,))}
    lists = [values.expand(layout.num_heads).tolist() for values in facts.values()]
    names = ["head", "site", "stage", "block", "index", *facts, DIGEST]
    if not layout.kinds <= {"head"}:
        lists.insert(0, [site.kind for _, _, site in layout])
        names.insert(5, "kind")
    rows = [
        [flat, site.name, site.stage, site.block, head, *(values[flat] for values in lists), layout.digest]
        for flat, (_, head, site) in enumerate(layout)
    ]
    return Table(names, rows, "per_head")


def per_head_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, K) values: the head as in ``per_head``, then one column per name along K."""
    return per_head(layout, dict(zip(names, values.unbind(-1), strict=True)))._replace(kind="per_head_along")


def pairwise_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, A, K) values of pairs: head_a < head_b, then one column per name along K, and the places of both heads.

    Only pairs that have any.
    """
    known = ~values.isnan().all(-1)
    a, b = torch.nonzero(known.triu(1), as_tuple=True)
    rows = [[*heads, *row] for *heads, row in zip(a.tolist(), b.tolist(), values[a, b].tolist(), strict=True)]
    return _placed(layout, Table(["head_a", "head_b", *names], rows, "pairwise_along"))


def pairwise(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head_a < head_b, then the (A, A) columns; (A,) columns give two, of head a and of head b; () columns repeat.

    Last block_a, index_a, block_b, index_b: the block of each head, and its number within its site. Only pairs whose
    "value" is not NaN: the others were not compared.
    """
    return _placed(layout, _pairs("head", list(range(layout.num_heads)), columns)._replace(kind="pairwise"))


def _placed(layout: HeadLayout, table: Table) -> Table:
    """The table of pairs of heads with the place of both behind its other columns."""
    places = [[site.block, head] for _, head, site in layout]
    names = ["block_a", "index_a", "block_b", "index_b"]
    rows = [[a, b, *more, *places[a], *places[b]] for a, b, *more in table.rows]
    return table._replace(columns=[*table.columns, *names], rows=rows)


def pairwise_layers(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b of two sites, then the (S, S), (S,) and () columns as in ``pairwise``."""
    return _pairs("block", [site.block for site in layout.sites], columns)._replace(kind="pairwise_layers")


def pairwise_blocks(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b, how many pairs of heads they have, their least, mean and greatest value, and the mean "null".

    A head and itself are no pair. Where a value depends on the order of the two, both orders count. Only blocks that
    were compared; null only where the measure has one.
    """
    value, null = columns["value"].double().clone().fill_diagonal_(torch.nan), columns.get("null")
    rows: list[list[Any]] = []
    for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate(layout.sites), 2):
        inside = torch.zeros_like(value, dtype=torch.bool)
        inside[layout.span(i), layout.span(j)] = inside[layout.span(j), layout.span(i)] = True
        inside &= ~value.isnan()
        if inside.any():
            of = value[inside]
            levels = [of.min(), of.mean(), of.max(), *([] if null is None else [null[inside].double().mean()])]
            rows.append([a.block, b.block, len(of) // 2, *(level.item() for level in levels)])
    names = ["block_a", "block_b", "pairs", "min", "mean", "max", *([] if null is None else ["null"])]
    return Table(names, rows, "pairwise_blocks")


def _pairs(noun: str, names: Sequence[int], columns: Mapping[str, Tensor]) -> Table:
    """Every compared pair once, by name."""
    count, named = len(names), torch.tensor(names)
    a, b = torch.triu(~columns["value"].isnan(), diagonal=1).nonzero(as_tuple=True)
    lists = {f"{noun}_a": named[a], f"{noun}_b": named[b]}
    for name, values in columns.items():
        if values.shape == (count, count):
            lists[name] = values[a, b]
        elif values.shape == (count,):
            lists[f"{name}_a"], lists[f"{name}_b"] = values[a], values[b]
        elif values.shape == ():
            lists[name] = values.expand(len(a))
    return Table(list(lists), [list(row) for row in zip(*(values.tolist() for values in lists.values()), strict=True)])


def of_measure(
    layout: HeadLayout,
    kind: MeasureKind,
    columns: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Table]:
    """All tables of a measure, by the end of their name: "" for its own, _blocks for pairs summed up, _<column>.

    kind: the measure's. axes: for columns with one more axis behind the heads or pairs, the names along it.
    """
    make = {"per_head": per_head, "pairwise": pairwise, "pairwise_layers": pairwise_layers}[kind]
    found = {"": make(layout, columns)}
    if kind == "pairwise":
        found["_blocks"] = pairwise_blocks(layout, columns)
    for column, names in (axes or {}).items():
        along = pairwise_along if columns[column].dim() == 3 else per_head_along
        found[f"_{column}"] = along(layout, columns[column], names)
    return found


def from_rows(rows: Sequence[Mapping[str, Any]], kind: Kind = "table") -> Table:
    """Dicts of equal keys, which become the columns."""
    columns = list(rows[0]) if rows else []
    return Table(columns, [[row[column] for column in columns] for row in rows], kind)


def curves(found: Sequence[Curve]) -> Table:
    """Masking curves, a row per point: see ``curve_rows``."""
    return from_rows(curve_rows(found), "curves")


def curve_rows(found: Sequence[Curve]) -> list[dict[str, Any]]:
    """A row per point of every masking curve; of a random one each repeat, and then their mean. "" stands for nothing.

    curve, split, step (0 is the unmasked model), heads_masked, unit (the one that the step added), masked (their flat
        indices).
    accuracy, low, high: in [0, 1], with Wilson's 95 % interval over images; in rows with seed "mean" Student's over
        repeats, with ``heads_masked`` their mean and no heads named. loss: mean nats.
    p: McNemar's exact test of the accuracy against the unmasked model on the same images; p_holm: the same after Holm's
        correction over the steps. Both are left empty on the images that the path was chosen on, where they would be
        too small; p_holm also where a single step is scored. delta: of the loss, in nats, positive where masking hurts,
        with its 95 % interval (bootstrap over images; in "mean" rows Student's over repeats).
    spent, exhaustive: image-forwards that the search asked for in the step, and that trying every candidate on every
        image takes; empty where the order does not say. seed: of a random path.
    search: how steps were decided. chosen_on: the split that the path was chosen on; chosen_by: digest of these images,
        by which a promise on them is refused. rescale: 1 where kept heads were
        multiplied by H / kept. fill: what stood in the place of masked heads. score: what "accuracy" (larger is better)
        and "loss" (smaller is) are, a file of mhprobe.scoring; "labels" for the words themselves. layout: digest of the
        model's heads, as in tables with a row per head.
    promised, where a guarantee was asked for: 1 at the steps that keep it, 0 at the others.
    """
    rows = []
    for curve in found:
        for trace in curve.traces:
            p_holm = trace.p_holm
            for k, step in enumerate(trace.step):
                masked = torch.nonzero(trace.mask[k]).flatten().tolist()
                of_path = {
                    "unit": trace.path.names[step - 1] if step else "",
                    "masked": " ".join(map(str, masked)),
                    "p": "" if trace.p is None else trace.p[k].item(),
                    "p_holm": "" if p_holm is None else p_holm[k].item(),
                    "spent": trace.path.spent[step - 1] if step and trace.path.spent else "",
                    "exhaustive": trace.path.exhaustive[step - 1] if step and trace.path.exhaustive else "",
                    "seed": "" if trace.path.seed is None else trace.path.seed,
                    **({} if trace.promised is None else {"promised": int(step <= trace.promised)}),
                }
                rows.append({**_point(curve, trace.step, trace.points, k), **of_path})
        if curve.averaged:
            points = curve.points
            rows += [{**_point(curve, curve.step, points, k), "seed": "mean"} for k in range(len(curve.step))]
    return rows


def _point(curve: Curve, step: Sequence[int], points: Points, k: int) -> dict[str, Any]:
    numbers = {name: values[k].item() for name, values in points._asdict().items()}
    heads = numbers.pop("heads")
    return {
        **dict.fromkeys(CURVE_COLUMNS, ""),  # in this order
        **numbers,
        "curve": curve.name,
        "split": curve.split,
        "step": step[k],
        "heads_masked": int(heads) if heads.is_integer() else heads,
        "search": curve.search,
        "chosen_on": curve.chosen_on or "",
        "chosen_by": curve.chosen_by,
        "rescale": int(curve.rescale),
        "fill": curve.fill,
        "score": curve.scored.name,
        DIGEST: curve.layout,
    }


def totals(found: Sequence[Totals]) -> Table:
    """A row per curve and split: the fields of ``Totals``."""
    return Table(list(Totals._fields), [["" if value is None else value for value in row] for row in found], "totals")


def masked_heads(heads: Sequence[MaskedHead]) -> Table:
    """A row per masked head: whether it is redundant or inert (masking/redundant_or_inert.py).

    curve, split, head, step, phase; kept_<name>, similarity_<name>, null_<name>, null_error_<name>, p_<name> for each
    similarity, empty where no kept head was compared or where there is no such thing; p over all of them, adjusted over
    the heads of the curve; standing, bar: where the head stands from chance (0) to identity (1), and where heads that
    can not go do; write_norm, write_share, verdict.
    """
    rows = []
    for head in heads:
        row: dict[str, Any] = {name: getattr(head, name) for name in ("curve", "split", "head", "step", "phase")}
        for name, like in head.likeness.items():
            fields = {"kept": "kept", "similarity": "similarity", "null": "null", "null_error": "error", "p": "p"}
            row |= {f"{column}_{name}": getattr(like, field, None) for column, field in fields.items()}
        row |= {name: getattr(head, name) for name in ("p", "standing", "bar", "write_norm", "write_share", "verdict")}
        rows.append({name: "" if cell is None or cell != cell else cell for name, cell in row.items()})
    return from_rows(rows)


def write_csv(path: Path, table: Table) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)  # floats through repr(): the shortest text that reads back to the same number
    return write(path, text.getvalue().encode())
