"""Question about masking curves: how accuracy falls as heads go, and what the heads were that could go."""

import logging
from typing import Literal

from mhprobe.masking.parts.trace import totals
from mhprobe.questions.material import Material
from mhprobe.report.figures import masking as figure
from mhprobe.report.masking import answer, of_curves, of_masked_heads
from mhprobe.report.result import Result
from mhprobe.scoring.labels import Labels

log = logging.getLogger(__name__)


def masking_curves(material: Material, over: Literal["heads", "steps"] = "heads") -> dict[str, Result]:
    """Accuracy as heads go, the totals, and what the heads were that could go. over: what the x axis counts."""
    curves, layout = material.curves(), material.layout
    heads = material.masked_heads(curves)
    found = totals(curves)
    chance = material.chance if curves and curves[0].scored == Labels.scored else None
    results = of_curves(curves, found, layout, chance)
    if over == "steps" and curves:
        drawn = figure.curves(curves, layout.num_heads, chance, over)
        results["masking_curves"] = results["masking_curves"]._replace(figure=drawn)
    if material.masking is not None and material.masking.join is not None:
        results |= of_masked_heads(heads, material.masking.join)
    if material.first:
        for line in answer(found, heads, curves, chance):
            log.info("%s", line)
    return results
