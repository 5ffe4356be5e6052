"""Which heads a run kept, as a table that another run can read: columns ``head`` (flat index) and ``kept`` (0 or 1)."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout


def read_kept(path: str | Path, layout: HeadLayout) -> Tensor:
    """(A,) bool. UserError if the table is missing, of other heads, or keeps none."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"gates.mask: no file {path}. Give the tables/gates.csv of a run that learned gates.")
    try:
        with path.open(newline="") as file:
            kept = {int(row["head"]): bool(int(row["kept"])) for row in csv.DictReader(file)}
    except (KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise UserError(
            f"gates.mask: {path}: expected the columns head and kept, with whole numbers ({error})."
        ) from error
    if sorted(kept) != list(range(layout.num_heads)):
        raise UserError(f"gates.mask: {path} lists {len(kept)} heads, the model has {layout.num_heads}, each once.")
    if not any(kept.values()):
        raise UserError(f"gates.mask: {path} keeps no head, expected at least one.")
    return torch.tensor([kept[head] for head in range(layout.num_heads)])
