"""Maps of single images, head by head, small enough for a page.

Shapes: B images, h, w the grid of a map.
"""

from __future__ import annotations

import re
from typing import Any

from mhprobe.report.html.folder import Run, column

IMAGES = 4  # as many are shown
SIDE = 14  # a larger grid is averaged down to it
OF_A_HEAD = re.compile(r"(?P<kind>[^/]+)/(?:block (?P<block>\d+)|(?P<site>.+)) head (?P<index>\d+)")


def maps(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per kind of map: titles of the images; for each head that has maps, a grid of 0 to 99 per image.

    99 is the largest value of the map itself. Empty where the run wrote no maps of heads.
    """
    file = run.folder / "maps.safetensors"
    if not file.exists() or not heads:
        return []
    from safetensors.torch import load_file

    kinds: dict[str, dict[int, Any]] = {}
    for name, maps_Bhw in load_file(file).items():
        if (found := OF_A_HEAD.fullmatch(name)) is None:
            continue
        for head in heads:
            here = head["site"] == found["site"] if found["site"] else str(head["block"]) == found["block"]
            if here and str(head["index"]) == found["index"]:
                kinds.setdefault(found["kind"], {})[head["id"]] = _grids(maps_Bhw[:IMAGES])
    return [{"name": kind.replace("_", " "), "titles": _titles(run), "heads": grids} for kind, grids in kinds.items()]


def _grids(maps_Bhw: Any) -> list[list[list[int]]]:
    from torch.nn.functional import adaptive_avg_pool2d

    height, width = maps_Bhw.shape[1:]
    small = adaptive_avg_pool2d(maps_Bhw.float().nan_to_num(0)[:, None], (min(height, SIDE), min(width, SIDE)))[:, 0]
    return (small.clamp(min=0) / small.amax((1, 2), keepdim=True).clamp(min=1e-12) * 99).round().int().tolist()


def _titles(run: Run) -> list[str]:
    table = run.tables.get("maps")
    if table is None:
        return []
    rows = zip(*(column(table, name) for name in ("image", "label", "predicted")), strict=True)
    return [f"image {image}: {label}, taken for {best}" for image, label, best in dict.fromkeys(rows)][:IMAGES]
