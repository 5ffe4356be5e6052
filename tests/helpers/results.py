"""Results of measures that nobody measured, written as a run writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from mhprobe.report.measured import of_measure
from mhprobe.report.report import Report, Result
from mhprobe.report.tables import Table


def measure(kind: str, **about: Any) -> Any:
    """What a measure says of itself."""
    usual = {"label": "", "unit": "", "larger": "", "alike": "largest", "masks": False, "about": ""}
    return SimpleNamespace(
        **{**usual, "also": (), "axes": {}, "along": {}, "of_images": True, "kind": kind, **about}
    )


def add_measure(
    report: Report,
    name: str,
    kind: str,
    columns: Mapping[str, Tensor],
    label: str = "",
    *,
    end: str = "",
    during: str = "",
    control: Mapping[str, Tensor] | None = None,
    **about: Any,
) -> list[Path]:
    about["label"] = label or name.replace("_", " ")
    described = measure(kind, layout=report.layout, **about)
    results = of_measure(name, described, columns, control, None, end, during)
    return report.add(results)


def add_rows(
    report: Report, name: str, rows: Sequence[Mapping[str, Any]], kind: str = "table", **more: Any
) -> None:
    columns = list(rows[0])
    report.add(
        {name: Result(Table(columns, [[row[c] for c in columns] for row in rows], kind), **more)}
    )
