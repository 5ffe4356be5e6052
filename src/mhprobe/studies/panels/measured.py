"""The tables and figures that a measure has anyway, those of a paper's figure alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report import tables, twins
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
        about, layout = material.measures[name], material.layout
        control = material.control.get(name)
        drawn = columns if control is None else {**columns, "random_init": control["value"]}
        for suffix, each in (("", drawn), ("_random_init", control)):
            for end, table in ({} if each is None else tables.of_measure(layout, about.kind, each, about.axes)).items():
                results[f"{name}{end}{suffix}"] = Result(table)
        for kind in (kinds_of or {}).get(name, ()) or kinds or (about.kind, *about.also):
            own = {**(options or {}), **(options_of or {}).get(kind, {})}
            figure = twins.draw(kind, layout, drawn, about.label, about.axes, control, **own)
            key = f"{name}_{kind}"
            of = None if about.of_images else ""
            # a column may be called as its figure is
            results[key] = results.get(key, Result())._replace(figure=figure, of=of)
    return results
