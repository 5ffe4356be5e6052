"""Maps of single images, head by head, small enough for a page.

A map is as many strings as it has rows, a letter per cell: "A" for 0 to "/" for the map's own largest value.

Shapes: B images, H heads of a site, h, w the grid of a map.
"""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhprobe.report.runs.run import Run, column

if TYPE_CHECKING:
    from torch import Tensor

IMAGES = 4  # as many are shown
SIDE = 14  # a larger grid is averaged down to it
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
LEVELS = len(LETTERS)
KEPT = "attention.safetensors"  # what callbacks/keep_attention.py leaves in every run that tests a model, or prunes it
OF_A_HEAD = re.compile(r"(?P<kind>[^/]+)/(?:block (?P<block>\d+)|(?P<site>.+)) head (?P<index>\d+)")


def maps(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per query or kind of map: titles and pictures of the images; for heads that have maps, one per image.

    Empty where the run wrote no maps of heads.
    """
    return [*_of_queries(run, heads), *_of_kinds(run, heads)] if heads else []


def _of_queries(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attention of every head in the run's first test images; of a pruning, of the heads that it left."""
    file = run.folder / KEPT
    if not file.exists():
        return []
    try:
        arrays, titles = _read(file)
    except (OSError, ValueError, KeyError) as error:
        run.unread.append(f"{KEPT}: {error}")
        return []
    pictures = [_url(picture) for picture in arrays.pop("pictures")]
    sites: dict[str, list[int]] = {}
    gone = _removed(run)
    for head in heads:
        if (head["site"], head["index"]) not in gone:
            sites.setdefault(head["site"], []).append(head["id"])
    found: dict[str, dict[int, Any]] = {}
    for key, levels_BHhw in arrays.items():
        query, _, site = key.partition("/")
        for index, flat in enumerate(sites.get(site, [])[: levels_BHhw.shape[1]]):
            found.setdefault(query, {})[flat] = [_letters(grid) for grid in levels_BHhw[:, index].tolist()]
    order = sorted(found, key=lambda query: ("class" not in query, "patch" in query, query))  # who is read comes first
    return [
        {"name": f"attention of {query}", "titles": titles, "pictures": pictures, "heads": found[query]}
        for query in order
    ]


def _removed(run: Run) -> set[tuple[str, int]]:
    """Site and index of the heads that are not in the model that a pruning left."""
    table = run.tables.get("kept_heads")
    if table is None:
        return set()
    rows = zip(*(column(table, name) for name in ("site", "index", "kept")), strict=True)
    return {(site, index) for site, index, kept in rows if not kept}


def _read(file: Path) -> tuple[dict[str, Any], list[str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            titles = json.loads((opened.metadata() or {})["titles"])
            return {name: opened.get_tensor(name) for name in opened.keys()}, titles  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _of_kinds(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``mhprobe.maps`` wrote, for the blocks that it was asked for."""
    file = run.folder / "maps.safetensors"
    if not file.exists():
        return []
    from safetensors.torch import load_file

    kinds: dict[str, dict[int, Any]] = {}
    for name, maps_Bhw in load_file(file).items():
        if (found := OF_A_HEAD.fullmatch(name)) is None:
            continue
        for head in heads:
            here = head["site"] == found["site"] if found["site"] else str(head["block"]) == found["block"]
            if here and str(head["index"]) == found["index"]:
                grids = [_letters(grid) for grid in levels(maps_Bhw[:IMAGES]).tolist()]
                kinds.setdefault(found["kind"], {})[head["id"]] = grids
    return [
        {"name": f"{kind.replace('_', ' ')} maps", "titles": _titles(run), "pictures": [], "heads": grids}
        for kind, grids in kinds.items()
    ]


def levels(maps: Tensor) -> Tensor:
    """(..., h, w) maps -> uint8, small enough for a page: 0 to LEVELS - 1, where a map has its largest value."""
    from torch.nn.functional import adaptive_avg_pool2d

    height, width = maps.shape[-2:]
    small = adaptive_avg_pool2d(maps.float().cpu().nan_to_num(0), (min(height, SIDE), min(width, SIDE)))
    share = small.clamp(min=0) / small.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    return (share * (LEVELS - 1)).round().byte()


def _letters(grid: list[list[int]]) -> list[str]:
    return ["".join(LETTERS[level] for level in row) for row in grid]


def _url(picture_3hw: Any) -> str:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(picture_3hw.permute(1, 2, 0).numpy()).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def _titles(run: Run) -> list[str]:
    table = run.tables.get("maps")
    if table is None:
        return []
    asked = [name for name in ("image", "label", "predicted") if name in table.columns]  # features predict nothing
    rows = dict.fromkeys(zip(*(column(table, name) for name in asked), strict=True))
    return [f"image {image}: {label}" + "".join(f", taken for {one}" for one in best) for image, label, *best in rows][
        :IMAGES
    ]
