"""Tidy tables: a row per head, per pair of heads, or per point of a masking curve.

Numbers read back to the same bits.

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
from mhprobe.masking.parts.trace import Curve, Points, Totals, Trace
from mhprobe.masking.redundant_or_inert import MaskedHead

CURVE_COLUMNS = (
    "curve",
    "split",
    "step",
    "heads_masked",
    "unit",
    "masked",
    "accuracy",
    "loss",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_holm",
    "delta",
    "delta_low",
    "delta_high",
    "spent",
    "exhaustive",
    "seed",
    "search",
    "chosen_on",
    "chosen_by",
    "rescale",
    "fill",
    "score",
    DIGEST,
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
    "promise",  # one row: what a pruning promises
    "speed",  # a row per mask and batch size
    "ranking",  # a row per method and budget, the best first
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
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def per_head(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head (flat index), site, stage, block, index (within the site), then the (A,) and () columns, and layout.

    layout: ``HeadLayout.digest``, which tells models apart. () columns repeat in every row; other
    shapes are left out. With neurons, ``head`` numbers all units, and ``kind`` follows ``index``.
    """
    facts = {
        name: values
        for name, values in columns.items()
        if values.shape in ((), (layout.num_heads,))
    }
    lists = [values.expand(layout.num_heads).tolist() for values in facts.values()]
    names = ["head", "site", "stage", "block", "index", *facts, DIGEST]
    if not layout.kinds <= {"head"}:
        lists.insert(0, [site.kind for _, _, site in layout])
        names.insert(5, "kind")
    rows = [
        [
            flat,
            site.name,
            site.stage,
            site.block,
            head,
            *(values[flat] for values in lists),
            layout.digest,
        ]
        for flat, (_, head, site) in enumerate(layout)
    ]
    return Table(names, rows, "per_head")


def per_head_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, K) values: the head as in ``per_head``, then one column per name along K."""
    return per_head(layout, dict(zip(names, values.unbind(-1), strict=True)))._replace(
        kind="per_head_along"
    )


def pairwise_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, A, K) values: head_a < head_b, a column per name along K, and the places of both; without pairs of NaN."""
    a, b = torch.nonzero((~values.isnan().all(-1)).triu(1), as_tuple=True)
    rows = [
        [*heads, *row]
        for *heads, row in zip(a.tolist(), b.tolist(), values[a, b].tolist(), strict=True)
    ]
    return _placed(layout, Table(["head_a", "head_b", *names], rows, "pairwise_along"))


def pairwise(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head_a < head_b, then the (A, A) columns, the (A,) columns of both heads, the () columns, and the heads' places.

    Places are block_a, index_a (within the site), block_b, index_b, and where blocks have several
    sites their names, site_a and site_b. Pairs with a NaN "value" are left out.
    """
    return _placed(layout, _pairs("head", columns)._replace(kind="pairwise"))


def _placed(layout: HeadLayout, table: Table) -> Table:
    """Append the places of both heads to a table of pairs."""
    several = len({site.block for site in layout.sites}) < len(layout.sites)
    names = ["block", "index"] + ["site"] * several
    places = [[site.block, head] + [site.name] * several for _, head, site in layout]
    rows = [[a, b, *more, *places[a], *places[b]] for a, b, *more in table.rows]
    return table._replace(
        columns=[*table.columns, *(f"{name}_{end}" for end in "ab" for name in names)], rows=rows
    )


def pairwise_layers(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b, then the (S, S), (S,) and () columns, and site_a, site_b, as in ``pairwise``."""
    table, sites = _pairs("block", columns), layout.sites
    several = len({site.block for site in sites}) < len(sites)
    rows = [
        [sites[a].block, sites[b].block, *more, *[sites[a].name, sites[b].name] * several]
        for a, b, *more in table.rows
    ]
    return Table([*table.columns, *["site_a", "site_b"] * several], rows, "pairwise_layers")


def pairwise_blocks(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b, number of pairs of heads, their least, mean and greatest value, and the mean "null", if any.

    Both orders of a pair count; a head and itself are no pair. Blocks that were not compared are
    left out.
    """
    value = columns["value"].double().clone().fill_diagonal_(torch.nan)
    null = columns.get("null")
    block = torch.tensor([site.block for _, _, site in layout])
    rows: list[list[Any]] = []
    for a, b in itertools.combinations_with_replacement(block.unique().tolist(), 2):
        across = (block[:, None] == a) & (block == b)
        inside = (across | across.mT) & ~value.isnan()
        if inside.any():
            of = value[inside]
            levels = [
                of.min(),
                of.mean(),
                of.max(),
                *([] if null is None else [null[inside].double().mean()]),
            ]
            rows.append([a, b, len(of) // 2, *(level.item() for level in levels)])
    names = [
        "block_a",
        "block_b",
        "pairs",
        "min",
        "mean",
        "max",
        *([] if null is None else ["null"]),
    ]
    return Table(names, rows, "pairwise_blocks")


def _pairs(noun: str, columns: Mapping[str, Tensor]) -> Table:
    """List every compared pair once."""
    a, b = torch.triu(~columns["value"].isnan(), diagonal=1).nonzero(as_tuple=True)
    lists, count = {f"{noun}_a": a, f"{noun}_b": b}, len(columns["value"])
    for name, values in columns.items():
        if values.shape == (count, count):
            lists[name] = values[a, b]
        elif values.shape == (count,):
            lists[f"{name}_a"], lists[f"{name}_b"] = values[a], values[b]
        elif values.shape == ():
            lists[name] = values.expand(len(a))
    return Table(
        list(lists),
        [list(row) for row in zip(*(values.tolist() for values in lists.values()), strict=True)],
    )


def of_measure(
    layout: HeadLayout,
    kind: MeasureKind,
    columns: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Table]:
    """Return all tables of a measure by the end of their name: "", "_blocks" of pairs, "_<column>" of ``axes``.

    axes: names along the extra axis of columns.
    """
    make = {"per_head": per_head, "pairwise": pairwise, "pairwise_layers": pairwise_layers}[kind]
    results = {"": make(layout, columns)}
    if kind == "pairwise":
        results["_blocks"] = pairwise_blocks(layout, columns)
    for column, names in (axes or {}).items():
        along = pairwise_along if columns[column].dim() == 3 else per_head_along
        results[f"_{column}"] = along(layout, columns[column], names)
    return results


def from_rows(rows: Sequence[Mapping[str, Any]], kind: Kind = "table") -> Table:
    """Make a table of dicts, with the columns of all; "" where a row has no such key."""
    columns = list(dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row))
    return Table(columns, [[row.get(column, "") for column in columns] for row in rows], kind)


def curve_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return a row per point of every masking curve: of a random one each repeat, then their mean. "" is no value.

    curve, split, step (0 is the unmasked model), heads_masked, unit (added by the step), masked
    (flat indices).
    accuracy, low, high: in [0, 1], with Wilson's 95 % interval over images; in rows with seed
        "mean" Student's over repeats, with the mean of ``heads_masked``. loss: mean nats.
    difference: of the accuracy against the unmasked model on the same images, negative if masking
        hurts, with its 95 % interval (Newcombe's); p: McNemar's exact test of it; p_holm: after
        Holm's correction over the steps. Both p are empty on the images that chose the path, where
        they would be too small; p_holm also if a single step is scored.
    delta: of the loss, in nats, positive if masking hurts, with its 95 % interval (bootstrap over
        images). In "mean" rows it and difference have Student's interval over repeats.
    spent, exhaustive: image-forwards of the search in this step, and of trying every candidate on
    every image. seed: of
        a random path. search: method of choosing the steps. chosen_on: split that chose the path;
        chosen_by: digest of its images, which no guarantee may use again.
    rescale: 1 if kept heads were multiplied by H / kept. fill: replacement of masked heads. score:
        a file of mhprobe.scoring, the meaning of "accuracy" (larger is better) and "loss" (smaller
        is).
        layout: digest of the model's heads. promised, with a guarantee: 1 at the steps that keep
        it, else 0.
    """
    rows = []
    for curve in curves:
        for trace in curve.traces:
            rows += _rows_of_trace(curve, trace)
        if curve.averaged:
            points = curve.points
            rows += [
                {**_point(curve, curve.step, points, k), "seed": "mean"}
                for k in range(len(curve.step))
            ]
    return rows


def _rows_of_trace(curve: Curve, trace: Trace) -> list[dict[str, Any]]:
    """Return a row per point of one path of a curve, with what the path knows of its step."""
    rows = []
    path, p, p_holm = trace.path, trace.p, trace.p_holm
    for k, step in enumerate(trace.step):
        masked = torch.nonzero(trace.mask[k]).flatten().tolist()
        row = {
            **_point(curve, trace.step, trace.points, k),
            "unit": _added_by(step, path.names),
            "masked": " ".join(map(str, masked)),
            "p": "" if p is None else p[k].item(),
            "p_holm": "" if p_holm is None else p_holm[k].item(),
            "spent": _added_by(step, path.spent),
            "exhaustive": _added_by(step, path.exhaustive),
            "seed": "" if path.seed is None else path.seed,
        }
        if trace.promised is not None:
            row["promised"] = int(step <= trace.promised)
        rows.append(row)
    return rows


def _added_by(step: int, per_step: Sequence[Any]) -> Any:
    """Return the value of a step; "" for the unmasked model, and where no step has one."""
    return per_step[step - 1] if step and per_step else ""


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


def totals(rows: Sequence[Totals]) -> Table:
    """A row per curve and split: the fields of ``Totals``."""
    return Table(
        list(Totals._fields),
        [["" if value is None else value for value in row] for row in rows],
        "totals",
    )


def masked_heads(heads: Sequence[MaskedHead]) -> Table:
    """Return a row per masked head: is it redundant or inert (masking/redundant_or_inert.py)?

    curve, split, head, step, phase; kept_<name>, similarity_<name>, null_<name>, null_error_<name>,
    p_<name> for each similarity, or empty; p over all of them, adjusted over the heads of the
    curve; standing: of the head from chance (0) to identity (1); bar: of heads that cannot go;
    write_norm, write_share, verdict.
    """
    rows = []
    for head in heads:
        row: dict[str, Any] = {
            name: getattr(head, name) for name in ("curve", "split", "head", "step", "phase")
        }
        for name, like in head.likeness.items():
            fields = {
                "kept": "kept",
                "similarity": "similarity",
                "null": "null",
                "null_error": "error",
                "p": "p",
            }
            row |= {
                f"{column}_{name}": getattr(like, field, None) for column, field in fields.items()
            }
        row |= {
            name: getattr(head, name)
            for name in ("p", "standing", "bar", "write_norm", "write_share", "verdict")
        }
        rows.append(
            {name: "" if cell is None or cell != cell else cell for name, cell in row.items()}
        )
    return from_rows(rows)


def write_csv(path: Path, table: Table) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(
        table.rows
    )  # floats through repr(): the shortest text that reads back to the same number
    return write(path, text.getvalue().encode())
