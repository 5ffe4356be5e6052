"""Similarity of heads in this network and in one that has learned nothing: the share that training added.

Shapes: A heads of all sites.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.questions.material import Material
from mhprobe.recording.measuring import measured
from mhprobe.report import tables
from mhprobe.report.figures import pairs as figure
from mhprobe.report.result import Result


def before_training(material: Material, images: int = 500) -> dict[str, Result]:
    """Per measure the pairs of heads of each block, in this network and in an untrained one of the same shape.

    images: test images that the untrained network is shown, at most; measures of weights need one. Table: measure,
    network, block, pairs, min, mean, max.
    """
    layout = material.layout
    measures = {name: material.about(name) for name in material.names}
    labels = {name: each.label for name, each in measures.items()}
    trained = {name: material.columns(name) for name in measures}
    untrained = measured(material.untrained(), measures, material.walk(images))
    rows: list[dict[str, Any]] = []
    for name, columns in trained.items():
        for network, values in (("trained", columns["value"]), ("untrained", untrained[name]["value"])):
            for number, site in enumerate(layout.sites):
                found = pairs(values, layout.span(number))
                if len(found):
                    extremes = {"min": found.min().item(), "mean": found.mean().item(), "max": found.max().item()}
                    about = {"measure": name, "network": network, "block": site.block, "pairs": len(found)}
                    rows.append({**about, **extremes})
    shown = min(images, material.data.sizes["test"])
    of = material.of(material.data.sizes["test"])
    of = of._replace(words=f"{of}, untrained: {shown}")
    return {"blocks": Result(tables.from_rows(rows), figure.before_training(rows, labels), of=of)}


def pairs(value: Tensor, span: slice) -> Tensor:
    """(N,) the values of the pairs of one block, each once; a head and itself are no pair."""
    inside = value[span, span].double()
    found = inside[torch.triu(torch.ones_like(inside, dtype=torch.bool), 1)]
    return found[found.isfinite()]
