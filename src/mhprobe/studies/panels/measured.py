"""The tables and figures that a measure has anyway, those of a paper's figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.measured import of_measure
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material


def measured(
    material: Material,
    kinds: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    kinds_of: Mapping[str, Sequence[str]] | None = None,
    options_of: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Result]:
    """Per measure its tables, and a figure per kind, with the freshly initialised network inside where it was measured.

    kinds: files of report/figures; none for the measure's own.
    kinds_of: by measure, where measures of one figure are drawn in different ways. options: passed on to the figures,
    e.g. limits=each. options_of: the same by kind.
    """
    results: dict[str, Result] = {}
    for name, columns in material.columns.items():
        about = material.measures[name]
        own = (kinds_of or {}).get(name, ()) or kinds or (about.kind, *about.also)
        results |= of_measure(
            name,
            about,
            material.layout,
            columns,
            material.control.get(name),
            drawn={f"_{kind}": kind for kind in own},
            options={kind: {**(options or {}), **(options_of or {}).get(kind, {})} for kind in own},
        )
    return results
