"""Relevance and confidence of the same heads, sorted within each layer (Voita et al. 2019, Figure 1)."""

from __future__ import annotations

from mhprobe.report import tables
from mhprobe.report.figures import sorted_heads
from mhprobe.report.report import Result
from mhprobe.stats.agreement import spearman
from mhprobe.studies.panels.material import Material


def relevance_and_confidence(material: Material) -> dict[str, Result]:
    """The figure's two measures side by side; the table has both, and their rank correlation over all heads."""
    values = {name: columns["value"] for name, columns in material.columns.items()}
    first, second = values.values()
    drawn = sorted_heads.draw(material.layout, {name.replace("_", " "): value for name, value in values.items()})
    alike = spearman(first.double(), second.double())
    table = tables.per_head(material.layout, {**values, "spearman": first.new_tensor(alike).double()})
    return {"heads": Result(table, drawn)}
