"""Masking curves of a paper's figure."""

from __future__ import annotations

from typing import Literal

from mhprobe.masking.parts.totals import totals
from mhprobe.report.figures import curves as figure
from mhprobe.report.masking import of_curves, of_masked_heads
from mhprobe.report.report import Result
from mhprobe.studies.panels.material import Material


def masking_curves(material: Material, over: Literal["heads", "steps"] = "heads") -> dict[str, Result]:
    """Accuracy as heads go, the totals, and what the heads were that could go. over: what the x axis counts."""
    curves, layout = material.curves, material.layout
    results = of_curves(curves, totals(list(curves)), layout, material.chance)
    if over == "steps" and curves:
        drawn = figure.draw(curves, layout.num_heads, material.chance, over)
        results["masking_curves"] = results["masking_curves"]._replace(figure=drawn)
    if material.join is not None:
        results |= of_masked_heads(material.heads, material.join)
    return results
