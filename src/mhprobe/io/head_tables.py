"""Read tables with one row per head, as measures, gates and prunings write them.

The column ``head`` holds the flat index, ``layout`` the digest of the heads: a table of other heads
is refused.

Shapes: A heads of all sites.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted

DIGEST = "layout"  # the column that names the heads


class ListedHeads(Protocol):
    """The heads that a table must list: a HeadLayout, or another table.

    digest: empty if nobody knows it.
    """

    @property
    def num_heads(self) -> int: ...

    @property
    def digest(self) -> str: ...


def read_rows(path: str | Path, columns: Sequence[str], asker: str) -> list[dict[str, str]]:
    """The rows of a .csv that has ``columns`` at least.

    asker: the option that named the file, for messages.
    """
    header, rows = read_cells(path, asker)
    missing = [name for name in columns if name not in header]
    if missing or not rows:
        got = (
            f"no column {', '.join(missing)}; it has {', '.join(header) or 'none'}"
            if missing
            else "no rows"
        )
        raise UserError(f"{asker}: {path} has {got}. Expected a .csv with {', '.join(columns)}.")
    if twice := [name for name in header if header.count(name) > 1]:
        raise UserError(f"{asker}: {path} has the column {twice[0]} twice, expected each once.")
    return [dict(zip(header, line, strict=True)) for line in rows]


def read_cells(path: str | Path, asker: str) -> tuple[list[str], list[list[str]]]:
    """The header of any .csv and the rows below it, as text.

    UserError for a file that is damaged.
    """
    lines: list[list[str]] = []
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines.extend(line for line in csv.reader(file, strict=True) if line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        where = f", row {max(1, len(lines))}" if isinstance(error, csv.Error) else ""
        raise UserError(
            f"{asker}: cannot read the table {path}{where} "
            f"({getattr(error, 'strerror', None) or error}). Give a .csv "
            f"that a run wrote, <folder>/tables/<name>.csv."
        ) from error
    header, *rows = lines or [[]]
    for number, line in enumerate(rows, 1):
        if len(line) != len(header):
            raise UserError(
                f"{asker}: {path}, row {number}: {len(line)} fields, expected {len(header)} as in "
                "the header. Was the "
                f"file cut off or edited?"
            )
    return header, rows


def read_heads(
    path: str | Path, columns: Sequence[str], layout: ListedHeads, asker: str
) -> list[dict[str, str]]:
    """The rows of all heads by flat index, in whatever order they are in the file."""
    return [
        row
        for _, _, row in sorted(_heads(path, columns, layout, asker), key=lambda entry: entry[1])
    ]


def read_column(path: str | Path, column: str, layout: ListedHeads, asker: str) -> Tensor:
    """(A,) float64, the numbers of one column, by flat index; NaN where the table says nan."""
    column_A = torch.full((layout.num_heads,), torch.nan, dtype=torch.float64)
    for number, head, row in _heads(path, (column,), layout, asker):
        try:
            column_A[head] = float(row[column])
        except ValueError:
            raise UserError(
                f"{asker}: {path}, row {number}, column {column}: expected a number, got "
                f"{quoted(row[column])}."
            ) from None
    return column_A


def read_kept(path: str | Path, layout: ListedHeads, asker: str = "mask") -> Tensor:
    """(A,) bool, the column ``kept``; UserError if the table keeps none."""
    kept_A = torch.zeros(layout.num_heads, dtype=torch.bool)
    for number, head, row in _heads(path, ("kept",), layout, asker):
        if row["kept"] not in ("0", "1"):
            raise UserError(
                f"{asker}: {path}, row {number}, column kept: expected 0 or 1, got "
                f"{quoted(row['kept'])}."
            )
        kept_A[head] = row["kept"] == "1"
    if not kept_A.any():
        raise UserError(f"{asker}: {path} keeps no head, expected at least one.")
    return kept_A


def check_layout(
    path: str | Path, rows: Sequence[dict[str, str]], layout: ListedHeads, asker: str
) -> None:
    """UserError if a row names another layout than the model's; an empty cell names none."""
    for number, row in enumerate(rows, 1):
        if layout.digest and (row.get(DIGEST) or layout.digest) != layout.digest:
            raise UserError(
                f"{asker}: {path}, row {number}, column {DIGEST}: the heads of another model "
                f"({quoted(row[DIGEST])}), "
                f"expected those of this one ({layout.digest})."
            )


def _heads(
    path: str | Path, columns: Sequence[str], layout: ListedHeads, asker: str
) -> Iterator[tuple[int, int, dict[str, str]]]:
    """(row number, flat index, row) of every head, each once; a table of other heads is refused before the first."""
    rows = read_rows(path, ("head", *columns), asker)
    check_layout(path, rows, layout, asker)
    heads: dict[int, int] = {}
    for number, row in enumerate(rows, 1):
        text = row["head"]
        if not (
            text.isascii() and text.isdigit() and len(text) < 10 and int(text) < layout.num_heads
        ):
            raise UserError(
                f"{asker}: {path}, row {number}, column head: expected 0 to "
                f"{layout.num_heads - 1}, got "
                f"{quoted(text)}. Was it made for another model?"
            )
        if int(text) in heads:
            raise UserError(
                f"{asker}: {path}, row {number}, column head: head {text} is in row "
                f"{heads[int(text)]} already."
            )
        heads[int(text)] = number
    if len(heads) < layout.num_heads:
        raise UserError(
            f"{asker}: {path} has {len(rows)} rows, column head: expected one for each of the "
            "model's "
            f"{layout.num_heads} heads. Was it made for another model?"
        )
    for row in rows:
        yield heads[int(row["head"])], int(row["head"]), row
