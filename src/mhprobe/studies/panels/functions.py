"""Functions of heads, several for a head where they apply (after Voita et al. 2019, section 5).

The rules of stats/survival.py. Those for rare patches and for objects cut where the figure says; "object" needs images
with masks of objects.

Shapes: A heads of all sites.
"""

import torch

from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import heads as figure
from mhprobe.report.result import Result
from mhprobe.stats.survival import THRESHOLDS, holds


def functions(material: Material, rare: float | None = None, on_object: float | None = None) -> dict[str, Result]:
    """Table: a column of 0 and 1 per function, and the thresholds; figure: marks in a grid of blocks by heads.

    rare, on_object: from how many times chance a head attends to rare patches, to the object; None for THRESHOLDS.
    """
    layout = material.layout
    columns = {
        f"{name}.{column}": values.double().tolist()
        for name in material.names
        for column, values in material.columns(name).items()
        if values.shape == (layout.num_heads,)
    }
    asked = {"rare": rare, "object": on_object}
    cuts = {**THRESHOLDS, **{name: cut for name, cut in asked.items() if cut is not None}}
    shown = rules(cuts["rare"], cuts["object"])
    found = {name: torch.tensor(on) for name, on in holds(columns, layout.num_heads, cuts).items()}
    for name, measure in (("rare", "rarity"), ("object", "object_attention")):
        if measure not in material.names:
            del found[name], cuts[name]
    numbers = {f"threshold_{name}": torch.tensor(cut, dtype=torch.float64) for name, cut in cuts.items()}
    table = tables.per_head(layout, {**{name: on.long() for name, on in found.items()}, **numbers})
    return {"functions": Result(table, figure.functions(layout, found, shown))}


def rules(rare: float, on_object: float) -> dict[str, str]:
    """By function, when it holds, in a few words."""
    cut = {name: f"{100 * value:g} %" for name, value in THRESHOLDS.items()}
    return {
        "positional": "90 % of queries at one offset",
        "CLS": f"{cut['prefix']} of attention on it",
        "registers": f"{cut['prefix']} of attention on them",
        "diffuse": f"entropy {cut['diffuse']} of even",
        "local": f"distance at most {cut['local']} of even in the window",
        "global": f"distance {cut['global']} of even over the image",
        "window": f"distance {cut['global']} of even in the window",
        "rare": f"rarest patch {rare:g} times as often as chance",
        "object": f"on an object {on_object:g} times as often as chance",
    }
