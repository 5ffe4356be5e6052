"""Tidy tables: one row per head, per pair of heads, or per point of a masking curve.

Numbers are written so that they read back to the same bits.

Shapes: A heads of all sites, S sites.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.head_tables import DIGEST


class Table(NamedTuple):
    """Column names, and rows of plain Python values in that order."""

    columns: list[str]
    rows: list[list[Any]]


def per_head(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head (flat index), site, stage, block, index (within the site), then the columns of shape (A,) or (), and layout.

    layout names the heads (``HeadLayout.digest``), so that a table is not taken for that of another model. A () column
    is a fact about the whole set and repeats in every row. Other shapes belong to no table.
    """
    facts = {name: values for name, values in columns.items() if values.shape in ((), (layout.num_heads,))}
    lists = [values.expand(layout.num_heads).tolist() for values in facts.values()]
    rows = [
        [flat, site.name, site.stage, site.block, head, *(values[flat] for values in lists), layout.digest]
        for flat, (_, head, site) in enumerate(layout)
    ]
    return Table(["head", "site", "stage", "block", "index", *facts, DIGEST], rows)


def per_head_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, K) values: the head as in ``per_head``, then one column per name along K."""
    return per_head(layout, dict(zip(names, values.unbind(-1), strict=True)))


def pairwise_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, A, K) values of pairs: head_a < head_b, then one column per name along K. Only pairs that have any."""
    known = ~values.isnan().all(-1)
    a, b = torch.nonzero(known.triu(1), as_tuple=True)
    rows = zip(a.tolist(), b.tolist(), values[a, b].tolist(), strict=True)
    return Table(["head_a", "head_b", *names], [[first, second, *more] for first, second, more in rows])


def pairwise(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head_a < head_b, then the (A, A) columns; (A,) columns give two, of head a and of head b; () columns repeat.

    Only pairs whose "value" is not NaN: the others were not compared.
    """
    return _pairs("head", list(range(layout.num_heads)), columns)


def pairwise_layers(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b of two sites, then the (S, S), (S,) and () columns as in ``pairwise``."""
    return _pairs("block", [site.block for site in layout.sites], columns)


def pairwise_blocks(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """block_a, block_b, how many pairs of heads they have, their least, mean and greatest value, and the mean "null".

    A head and itself are no pair. Where a value depends on the order of the two, both orders count. Only blocks that
    were compared; null only where the measure has one.
    """
    value = columns["value"].double().clone().fill_diagonal_(torch.nan)
    null = columns.get("null")
    rows: list[list[Any]] = []
    for (i, a), (j, b) in itertools.combinations_with_replacement(enumerate(layout.sites), 2):
        inside = torch.zeros_like(value, dtype=torch.bool)
        inside[layout.span(i), layout.span(j)] = inside[layout.span(j), layout.span(i)] = True
        inside &= ~value.isnan()
        if inside.any():
            found = value[inside]
            chance = [] if null is None else [null[inside].double().mean().item()]
            extremes = [found.min().item(), found.mean().item(), found.max().item()]
            rows.append([a.block, b.block, len(found) // 2, *extremes, *chance])
    chance_name = [] if null is None else ["null"]
    return Table(["block_a", "block_b", "pairs", "min", "mean", "max", *chance_name], rows)


def _pairs(noun: str, names: Sequence[int], columns: Mapping[str, Tensor]) -> Table:
    """Every compared pair once, by name."""
    count = len(names)
    inside = torch.triu(~columns["value"].isnan(), diagonal=1)
    a, b = torch.nonzero(inside, as_tuple=True)
    named = torch.tensor(names)
    lists = {f"{noun}_a": named[a], f"{noun}_b": named[b]}
    for name, values in columns.items():
        if values.shape == (count, count):
            lists[name] = values[a, b]
        elif values.shape == (count,):
            lists[f"{name}_a"], lists[f"{name}_b"] = values[a], values[b]
        elif values.shape == ():
            lists[name] = values.expand(len(a))
    return Table(list(lists), [list(row) for row in zip(*(values.tolist() for values in lists.values()), strict=True)])


def curves(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of masking curves, in their own columns."""
    columns = list(rows[0]) if rows else []
    return Table(columns, [[row[column] for column in columns] for row in rows])


def as_text(table: Table) -> str:
    """The table for a terminal: aligned columns, numbers to four decimals."""
    cells = [table.columns, *[[_short(value) for value in row] for row in table.rows]]
    wide = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    numeric = [all(isinstance(row[i], float | int) or row[i] == "" for row in table.rows) for i in range(len(wide))]
    return "\n".join(
        "  ".join(
            text.rjust(room) if right else text.ljust(room)
            for text, room, right in zip(row, wide, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.4f}"
    return str(value)


def write_csv(path: Path, table: Table) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)  # floats through repr(): the shortest text that reads back to the same number
    return write(path, text.getvalue().encode())
