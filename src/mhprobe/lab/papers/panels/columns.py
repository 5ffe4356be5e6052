"""Columns of measures, compared with each other, with an untrained network, and with another data set.

Shapes: A heads of all sites.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from mhprobe.data.base import ImageData
from mhprobe.data.corrupted import Corrupted
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.measured import second_to
from mhprobe.measures.parts.functions import FUNCTIONS, holds
from mhprobe.recording.measuring import measure_or_raise
from mhprobe.report import tables
from mhprobe.report.figures import heads, pairs
from mhprobe.report.measured import two_data_sets
from mhprobe.report.result import Result
from mhprobe.stats.agreement import spearman


def by_block(material: Material) -> dict[str, Result]:
    layout = material.layout
    results = {}
    for name in material.names:
        table = tables.pairwise_blocks(layout, material.columns(name))
        rows = [
            {"block": row["block_a"], **row}
            for row in table.dicts()
            if row["block_a"] == row["block_b"]
        ]
        measure = material.about(name)
        results[name] = Result(table, pairs.by_block(layout, rows, measure.label)).saying(
            measure.label, measure.larger, measure.unit
        )
    return results


def relevance_and_confidence(material: Material) -> dict[str, Result]:
    """Draw two measures, sorted within each layer (Voita et al. 2019, Figure 1).

    Table: both, and their Spearman.
    """
    values = {name: material.columns(name)["value"] for name in material.names}
    first, second = values.values()
    panel = heads.sorted_heads(
        material.layout, {name.replace("_", " "): value for name, value in values.items()}
    )
    alike = first.new_tensor(spearman(first.double(), second.double())).double()
    table = tables.per_head(material.layout, {**values, "spearman": alike})
    return {"heads": Result(table, panel).saying(*meanings(material))}


def functions(
    material: Material, rare: float | None = None, on_object: float | None = None
) -> dict[str, Result]:
    """Mark the functions of heads by the table of measures/parts/functions.py (after Voita et al. 2019, section 5).

    A head may have several; "object" needs images with masks of objects. Table: a column of 0 and 1
    per function, and the thresholds. rare, on_object: thresholds, in times chance, of attention to
    rare patches and to the object; None for those of the table.
    """
    layout = material.layout
    given = {"rare": rare, "object": on_object}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    cuts = {"prefix": FUNCTIONS["CLS"].limit}
    for name in ("rare", "object", "diffuse", "local", "global"):
        cuts[name] = limits.get(name, FUNCTIONS[name].limit)
    cut = {name: f"{100 * value:g} %" for name, value in cuts.items()}
    words = {
        "positional": f"{100 * FUNCTIONS['positional'].limit:g} % of queries at one offset",
        "CLS": f"{cut['prefix']} of attention on it",
        "registers": f"{cut['prefix']} of attention on them",
        "diffuse": f"entropy {cut['diffuse']} of even",
        "local": f"distance at most {cut['local']} of even in the window",
        "global": f"distance {cut['global']} of even over the image",
        "window": f"distance {cut['global']} of even in the window",
        "rare": f"rarest patch {cuts['rare']:g} times as often as chance",
        "object": f"on an object {cuts['object']:g} times as often as chance",
        "mixed": "none of these",
    }
    marks = {
        name: torch.tensor(on)
        for name, on in holds(of_heads(material), layout.num_heads, limits).items()
    }
    for name, measure in (("rare", "rarity"), ("object", "object_attention")):
        if measure not in material.names:
            del marks[name], cuts[name]
    columns = {name: on.long() for name, on in marks.items()}
    columns |= {
        f"threshold_{name}": torch.tensor(cut, dtype=torch.float64) for name, cut in cuts.items()
    }
    result = Result(tables.per_head(layout, columns), heads.functions(layout, marks, words))
    return {
        "functions": result.saying("has the function (1), or not (0)", "the head has the function")
    }


def of_heads(material: Material) -> dict[str, list[float]]:
    """Return ``<measure>.<column>`` of the figure's measures, (A,) each, for measures/parts/functions.py."""
    return {
        f"{name}.{column}": values.double().tolist()
        for name in material.names
        for column, values in material.columns(name).items()
        if values.shape == (material.layout.num_heads,)
    }


def entropy(material: Material, images: int = 500) -> dict[str, Result]:
    """Draw the entropy of attention by block, beside an untrained network (Clark et al., 2019, Figure 4).

    images: for the untrained network. Table: value, class_query, uniform, and the first two
    untrained, in nats.
    """
    layout = material.layout
    (name,) = material.names
    columns = material.columns(name)
    untrained = measure_or_raise(
        material.untrained(), {name: material.about(name)}, material.walk(images)
    )[name]
    shown = {"value": ("all_tokens", "entropy of attention (nats)")}
    shown["class_query"] = ("class_query", "entropy of the class token's row (nats)")
    results = {}
    for column, (end, label) in shown.items():
        if not columns[column].isnan().all():
            drawn = {
                "value": columns[column],
                "uniform": columns["uniform"],
                "random_init": untrained[column],
            }
            results[end] = Result(figure=heads.by_depth(layout, drawn, label))
    values = {column: columns[column] for column in (*shown, "uniform")}
    values |= {f"{column}_untrained": untrained[column] for column in shown}
    measure = material.about(name)
    return {
        **results,
        "heads": Result(tables.per_head(layout, values)).saying(
            measure.label, measure.larger, measure.unit
        ),
    }


def before_training(material: Material, images: int = 500) -> dict[str, Result]:
    """Compare the similarity of heads of a block with an untrained network's.

    images: for that, at most.

    Table: measure, network, block, pairs, min, mean, max.
    """
    layout = material.layout
    measures = {name: material.about(name) for name in material.names}
    networks = {"trained": {name: material.columns(name) for name in measures}}
    networks["untrained"] = measure_or_raise(material.untrained(), measures, material.walk(images))
    rows: list[dict[str, Any]] = [
        {"measure": name, "network": network, "block": site.block, "pairs": len(values)}
        | {"min": values.min().item(), "mean": values.mean().item(), "max": values.max().item()}
        for name in measures
        for network, columns in networks.items()
        for number, site in enumerate(layout.sites)
        if len(values := pairs_of_block(columns[name]["value"], layout.span(number)))
    ]
    panel = pairs.before_training(rows, {name: measure.label for name, measure in measures.items()})
    sample = material.of(material.data.sizes["test"])
    words = f"{sample}, untrained: {material.of(images).images}"
    return {
        "blocks": Result(tables.from_rows(rows), panel, of=sample._replace(words=words)).saying(
            *meanings(material)
        )
    }


def meanings(material: Material) -> list[str]:
    """Return the labels and the directions of the figure's measures, for a result of several."""
    measures = [material.about(name) for name in material.names]
    return [
        "; ".join(dict.fromkeys(words))
        for words in (
            [measure.label for measure in measures],
            [measure.larger for measure in measures],
        )
    ]


def pairs_of_block(value: Tensor, span: slice) -> Tensor:
    """(N,) finite values of the pairs of one block, each once."""
    inside = value[span, span].double()
    values = inside[torch.triu(torch.ones_like(inside, dtype=torch.bool), 1)]
    return values[values.isfinite()]


def two_sets(
    material: Material, second: ImageData | None = None, severity: int = 3
) -> dict[str, Result]:
    """Compare the drop of accuracy without each head on the test images of two data sets (Michel et al. 2019, Fig. 2).

    second: another data set with the same classes; None for the same one with damaged test images
    (data/corrupted.py) of this severity. UserError for other classes.
    """
    first, other = material.data, second_set(material.data, second, severity)
    (name,) = material.names
    walk = functools.partial(other.batches, "test", material.model.device)
    columns = measure_or_raise(
        material.model, {name: material.about(name)}, walk, class_names=other.class_names
    )
    drops = {
        first.source.name: material.columns(name)["drop"],
        other.source.name: columns[name]["drop"],
    }
    (one, x), (two, y) = drops.items()
    label = "accuracy lost (points)"
    result = two_data_sets(material.layout, one, two, {label: 100 * x}, {label: 100 * y})
    table = tables.per_head(
        material.layout, {f"drop_{key}": values for key, values in drops.items()}
    )
    return {
        "correlation": result,
        "heads": Result(table).saying("accuracy lost without the head", "it is needed more"),
    }


def second_set(first: ImageData, other: ImageData | None = None, severity: int = 3) -> ImageData:
    """Return a second data set for the network of the first; None for damaged test images.

    UserError: other classes.
    """
    other = other or first.of_source(Corrupted(first.source, severity=severity))
    other.list_images()
    other.trainer = first.trainer
    return second_to(first, other, "second data set")
