"""Importance of each head on two data sets with the same classes (Michel et al. 2019, Figure 2).

Shapes: A heads of all sites.
"""

import functools

from mhprobe.data.base import ImageData
from mhprobe.data.corrupted import Corrupted
from mhprobe.errors import UserError
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import measured
from mhprobe.report import tables
from mhprobe.report.comparisons import two_data_sets
from mhprobe.report.result import Result


def two_sets(material: Material, second: ImageData | None = None, severity: int = 3) -> dict[str, Result]:
    """The drop of accuracy without each head, on the test images of both, and how the two correlate over heads.

    second: another data set; None for the same one with damaged test images (data/corrupted.py) of this severity.
    UserError where its classes are others: the drop would mean nothing.
    """
    first = material.data
    other = second_set(first, second, severity)
    (name,) = material.names
    drop = material.columns(name)["drop"]
    walk = functools.partial(other.batches, "test", material.model.device)
    found = measured(material.model, {name: material.about(name)}, walk, class_names=other.class_names)
    drops = {first.source.name: drop, other.source.name: found[name]["drop"]}
    (one, x), (two, y) = drops.items()
    label = "accuracy lost (points)"
    drawn = two_data_sets(material.layout, one, two, {label: 100 * x}, {label: 100 * y})
    heads = tables.per_head(material.layout, {f"drop_{key}": values for key, values in drops.items()})
    return {"correlation": drawn, "heads": Result(heads)}


def second_set(first: ImageData, other: ImageData | None = None, severity: int = 3) -> ImageData:
    """Another data set, ready for the network of the first; None for damaged test images. UserError: other classes."""
    other = other or first.of_source(Corrupted(first.source, severity=severity))
    other.prepare_data()
    other.setup()
    if other.class_names != first.class_names:
        raise UserError(
            f"second data set: {other.source.name} has the classes {', '.join(other.class_names[:3])} ..., expected "
            f"those of {first.source.name}: {', '.join(first.class_names[:3])} ..."
        )
    other.spec, other.trainer = first.spec, first.trainer
    return other
