"""Relevance and confidence of the same heads, sorted within each layer (Voita et al. 2019, Figure 1)."""

from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import heads
from mhprobe.report.result import Result
from mhprobe.stats.agreement import spearman


def relevance_and_confidence(material: Material) -> dict[str, Result]:
    """The figure's two measures side by side; the table has both, and their rank correlation over all heads."""
    values = {name: material.columns(name)["value"] for name in material.names}
    first, second = values.values()
    drawn = heads.sorted_heads(material.layout, {name.replace("_", " "): value for name, value in values.items()})
    alike = spearman(first.double(), second.double())
    table = tables.per_head(material.layout, {**values, "spearman": first.new_tensor(alike).double()})
    return {"heads": Result(table, drawn)}
