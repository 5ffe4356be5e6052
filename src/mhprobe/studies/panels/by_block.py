"""Pairs of heads summed up per block, as a table and drawn."""

from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import pairs as figure
from mhprobe.report.result import Result


def by_block(material: Material) -> dict[str, Result]:
    """A result per pairwise measure of the figure."""
    return {
        name: Result(
            tables.pairwise_blocks(material.layout, columns),
            figure.by_block(material.layout, columns, material.about(name).label),
        )
        for name in material.names
        for columns in [material.columns(name)]
    }
