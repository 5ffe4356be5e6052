"""Tidy tables: one row per head, per pair of heads, or per point of a masking curve.

Numbers are written so that they read back to the same bits.

Shapes: A heads of all sites.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.files import write
from mhprobe.heads import HeadLayout


class Table(NamedTuple):
    """Column names, and rows of plain Python values in that order."""

    columns: list[str]
    rows: list[list[Any]]


def per_head(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head (flat index), site, stage, block, index (within the site), then the columns of shape (A,) or ().

    A () column is a fact about the whole set and repeats in every row. Other shapes belong to no table.
    """
    facts = {name: values for name, values in columns.items() if values.shape in ((), (layout.num_heads,))}
    lists = [values.expand(layout.num_heads).tolist() for values in facts.values()]
    rows = [
        [flat, site.name, site.stage, site.block, head, *(values[flat] for values in lists)]
        for flat, (_, head, site) in enumerate(layout)
    ]
    return Table(["head", "site", "stage", "block", "index", *facts], rows)


def per_head_along(layout: HeadLayout, values: Tensor, names: Sequence[str]) -> Table:
    """(A, K) values: the head as in ``per_head``, then one column per name along K."""
    table = per_head(layout, {})
    return Table([*table.columns, *names], [row + more for row, more in zip(table.rows, values.tolist(), strict=True)])


def pairwise(layout: HeadLayout, columns: Mapping[str, Tensor]) -> Table:
    """head_a < head_b, then the (A, A) columns; (A,) columns give two, of head a and of head b; () columns repeat.

    Only pairs whose "value" is not NaN: the others were not compared.
    """
    count = layout.num_heads
    inside = torch.triu(~columns["value"].isnan(), diagonal=1)
    head_a, head_b = torch.nonzero(inside, as_tuple=True)
    lists = {"head_a": head_a, "head_b": head_b}
    for name, values in columns.items():
        if values.shape == (count, count):
            lists[name] = values[head_a, head_b]
        elif values.shape == (count,):
            lists[f"{name}_a"], lists[f"{name}_b"] = values[head_a], values[head_b]
        elif values.shape == ():
            lists[name] = values.expand(len(head_a))
    return Table(list(lists), [list(row) for row in zip(*(values.tolist() for values in lists.values()), strict=True)])


def curves(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of masking curves, in their own columns."""
    columns = list(rows[0]) if rows else []
    return Table(columns, [[row[column] for column in columns] for row in rows])


def write_csv(path: Path, table: Table) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)  # floats through repr(): the shortest text that reads back to the same number
    return write(path, text.getvalue().encode())
