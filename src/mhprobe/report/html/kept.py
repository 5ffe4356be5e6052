"""Read for a page what questions/beside.py has kept: maps of single images, head by head, and the network.

A map is as many strings as it has rows, a letter per cell: "A" for 0 to "/" for the map's own largest value.

live.html is a run's page with the network in it, so that heads are switched where the page is read. ONNX Runtime Web
runs the network: its WebAssembly stands in the page, compressed, and nothing is fetched. The policy of the page lets
WebAssembly be compiled, and no script but those whose hashes it names.

Shapes: B images, H heads of a site, h, w the grid of a map.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mhprobe.report.html.pictures import encoded, packed
from mhprobe.report.runs.run import Run

if TYPE_CHECKING:
    from torch import Tensor

IMAGES = 4  # as many are shown
SIDE = 14  # a larger grid is averaged down to it
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
LEVELS = len(LETTERS)
ATTENTION = "attention.safetensors"  # of every run that tests a model, or prunes it
MAPS = "maps.safetensors"  # what mhprobe.maps leaves
NETWORK = "live.safetensors"
MOST = 25_000_000  # bytes of a network that a page can hold
VENDOR = Path(__file__).parent / "vendor"
_EXPORTED = re.compile(r"export\{([^}]*)\};?\s*(//# sourceMappingURL=\S+\s*)?$")


def maps(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per query or kind of map: titles and pictures of the images; for heads that have maps, one per image.

    Empty where the run wrote no maps of heads.
    """
    return [*_of_queries(run, heads), *_of_kinds(run, heads)] if heads else []


def _of_queries(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Attention of every head in the run's first test images; of a pruning, of the heads that it left."""
    arrays, about = run.files.tried(run.files.tensors, ATTENTION) or ({}, {})
    if not arrays:
        return []
    titles = _list(about, "titles")
    pictures = [encoded(picture, "png") for picture in arrays["pictures"].permute(0, 2, 3, 1).numpy()]
    sites: dict[str, list[int]] = {}
    pruned = [table for _, entry, table in run.of_kind("per_head") if entry.decides == "removed"]
    gone = {row["head"] for table in pruned for row in table.dicts() if not row["kept"]}
    for head in heads:
        if head["id"] not in gone:
            sites.setdefault(head["site"], []).append(head["id"])
    shown = []
    for query, names in json.loads(about.get("queries", "{}")).items():
        grids: dict[int, Any] = {}
        for site in names:
            levels_BHhw = arrays[f"{query}/{site}"]
            for index, flat in enumerate(sites.get(site, [])[: levels_BHhw.shape[1]]):
                grids[flat] = [_letters(grid) for grid in levels_BHhw[:, index].tolist()]
        shown.append({"name": f"attention of {query}", "titles": titles, "pictures": pictures, "heads": grids})
    return shown


def _of_kinds(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the maps that ``mhprobe.maps`` wrote, for the blocks that it was asked for."""
    arrays, about = run.files.tried(run.files.tensors, MAPS) or ({}, {})
    kinds: dict[str, dict[int, Any]] = {}
    for name, (kind, head) in json.loads(about.get("heads", "{}")).items():
        if 0 <= head < len(heads):
            grids = levels(arrays[name][:IMAGES]).tolist()
            kinds.setdefault(kind, {})[head] = [_letters(grid) for grid in grids]
    titles = _list(about, "titles")[:IMAGES]
    return [{"name": kind, "titles": titles, "pictures": [], "heads": grids} for kind, grids in kinds.items()]


def _list(about: dict[str, str], name: str) -> list[str]:
    return [str(text) for text in json.loads(about.get(name, "[]"))]


def levels(maps: Tensor) -> Tensor:
    """(..., h, w) maps -> uint8, small enough for a page: 0 to LEVELS - 1, where a map has its largest value."""
    from torch.nn.functional import adaptive_avg_pool2d

    height, width = maps.shape[-2:]
    small = adaptive_avg_pool2d(maps.float().cpu().nan_to_num(0), (min(height, SIDE), min(width, SIDE)))
    share = small.clamp(min=0) / small.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    return (share * (LEVELS - 1)).round().byte()


def _letters(grid: list[list[int]]) -> list[str]:
    return ["".join(LETTERS[level] for level in row) for row in grid]


class Live(NamedTuple):
    """A network for a page. about: what the page's scripts need. packs: compressed bytes by the id of their element."""

    about: dict[str, Any]
    packs: dict[str, str]


def live(run: Run) -> Live | None:
    """Return the network that a run has kept; None where it has not."""
    try:
        arrays, about = run.files.tensors(NETWORK)
        if not arrays:
            return None
        told = json.loads(about["live"])
        network = [arrays[f"piece/{n}"].numpy().tobytes() for n in range(len(told["pieces"]))]
        beside = sum(map(len, network)) > MOST
        bytes_ = {} if beside else {f"live-piece-{n}": packed(piece) for n, piece in enumerate(network)}
        bytes_["live-images"] = packed(arrays["images"].numpy().tobytes())
    except (ValueError, KeyError, TypeError) as error:
        run.unread.append(f"{NETWORK}: {error}")
        return None
    bytes_["live-wasm"] = packed(lzma.decompress((VENDOR / "ort-wasm-simd-threaded.wasm.xz").read_bytes()))
    logits = [[float(f"{value:.6g}") for value in row] for row in arrays["logits"].tolist()]
    kept = {"labels": arrays["labels"].tolist(), "logits": logits, "shape": list(arrays["images"].shape)}
    return Live({**told, **kept, "beside": NETWORK if beside else None}, bytes_)


def runtime() -> str:
    """Return ONNX Runtime Web as a script of the page: what its module exports becomes the global ``ort``.

    It gets an address that it never asks: a notebook's cell that was opened from a file has none to which it can add.
    """
    text = (VENDOR / "ort.wasm.bundle.min.mjs").read_text(encoding="utf-8").replace("import.meta.url", '"about:blank"')
    names = _EXPORTED.search(text)
    assert names is not None  # the file is as it was published
    pairs = [each.split(" as ") for each in names[1].split(",")]
    exported = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs if pair[-1] != "default")
    return f"{text[: names.start()]}globalThis.ort={{{exported}}};"
