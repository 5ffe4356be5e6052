"""The tables and figures that a measure has anyway, those of a paper's figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report import figures, tables
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material


def measured(
    material: Material,
    kinds: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    kinds_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Result]:
    """Per measure its tables, and a figure per kind. kinds: files of report/figures; none for the measure's own.

    kinds_of: by measure, where measures of one figure are drawn in different ways. options: passed on to the figures,
    e.g. limits=each.
    """
    results = {}
    for name, columns in material.columns.items():
        about, layout = material.measures[name], material.layout
        for end, table in tables.of_measure(layout, about.kind, columns, about.axes).items():
            results[f"{name}{end}"] = Result(table)
        for kind in (kinds_of or {}).get(name, ()) or kinds or (about.kind, *about.also):
            drawn = figures.draw(kind, layout, columns, about.label, about.axes, **(options or {}))
            results[f"{name}_{kind}"] = Result(figure=drawn)
    return results
