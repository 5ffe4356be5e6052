"""Reading, for a page, of what pages/beside.py has kept: maps of single images, head by head, and the network.

A map is a string per row with a letter per cell, from "A" for 0 to "/" for the map's largest value.

live.html is a run's page with the network in it, in which a reader switches heads. ONNX Runtime Web
runs the network: its WebAssembly stands compressed in the page, and nothing is fetched. The page's
policy allows WebAssembly, and no scripts but those whose hashes it names.

Shapes: B images, H heads of a site, h, w the grid of a map.
"""

import json
import lzma
import re
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from mhprobe.pages.html.pictures import encoded, gzipped
from mhprobe.report.runs.run import Run

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


def maps_of_run(run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry per query or kind of map: titles and pictures of the images, and maps by head, one per image."""
    readers = {ATTENTION: _of_queries, MAPS: _of_kinds} if heads else {}
    return [
        entry
        for name, read in readers.items()
        for entry in run.files.tried(read, name, run, heads) or []
    ]


def _of_queries(name: str, run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the attention of every remaining head in the run's first test images.

    hidden: on heads without weights.
    """
    arrays, about = run.files.tensors(name)
    if not arrays:
        return []
    same: dict[str, Any] = {"titles": _list(about, "titles"), "hidden": about.get("hidden", "")}
    same["pictures"] = [
        encoded(picture, "png") for picture in arrays["pictures"].permute(0, 2, 3, 1).numpy()
    ]
    pruned = [table for _, entry, table in run.of_kind("per_head") if entry.decides == "removed"]
    gone = {row["head"] for table in pruned for row in table.dicts() if not row["kept"]}
    shown = []
    for query, names in json.loads(about.get("queries", "{}")).items():
        grids: dict[int, Any] = {}
        for site in names:
            left = [head["id"] for head in heads if head["site"] == site and head["id"] not in gone]
            for flat, levels_Bhw in zip(left, arrays[f"{query}/{site}"].unbind(1), strict=False):
                grids[flat] = _letters(levels_Bhw)
        shown.append({"name": f"attention of {query}", **same, "heads": grids})
    return shown


def _of_kinds(file: str, run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the maps that ``mhprobe.maps`` wrote."""
    arrays, about = run.files.tensors(file)
    kinds: dict[str, dict[int, Any]] = {}
    for name, (kind, head) in json.loads(about.get("heads", "{}")).items():
        if 0 <= head < len(heads):
            kinds.setdefault(kind, {})[head] = _letters(levels(arrays[name][:IMAGES]))
    titles = _list(about, "titles")[:IMAGES]
    return [
        {"name": kind, "titles": titles, "pictures": [], "heads": grids}
        for kind, grids in kinds.items()
    ]


def _list(about: dict[str, str], name: str) -> list[str]:
    return [str(text) for text in json.loads(about.get(name, "[]"))]


def levels(maps: Tensor) -> Tensor:
    """(..., h, w) maps -> uint8 of at most SIDE x SIDE, from 0 to LEVELS - 1 at a map's largest value."""
    height, width = maps.shape[-2:]
    small = adaptive_avg_pool2d(
        maps.float().cpu().nan_to_num(0), (min(height, SIDE), min(width, SIDE))
    )
    share = small.clamp(min=0) / small.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    return (share * (LEVELS - 1)).round().byte()


def _letters(levels_Bhw: Tensor) -> list[list[str]]:
    return [
        ["".join(LETTERS[level] for level in row) for row in grid] for grid in levels_Bhw.tolist()
    ]


class Live(NamedTuple):
    """A network for a page.

    about: data for the page's scripts. packs: compressed bytes by the id of their element.
    """

    about: dict[str, Any]
    packs: dict[str, str]


def kept_network(name: str, run: Run) -> Live | None:
    """Read the network that a run has kept; None without one."""
    arrays, about = run.files.tensors(name)
    if not arrays:
        return None
    description = json.loads(about["live"])
    network = [arrays[f"piece/{n}"].numpy().tobytes() for n in range(len(description["pieces"]))]
    beside = sum(map(len, network)) > MOST
    bytes_ = (
        {} if beside else {f"live-piece-{n}": gzipped(piece) for n, piece in enumerate(network)}
    )
    bytes_["live-images"] = gzipped(arrays["images"].numpy().tobytes())
    bytes_["live-wasm"] = gzipped(
        lzma.decompress((VENDOR / "ort-wasm-simd-threaded.wasm.xz").read_bytes())
    )
    logits = [[float(f"{value:.6g}") for value in row] for row in arrays["logits"].tolist()]
    kept = {
        "labels": arrays["labels"].tolist(),
        "logits": logits,
        "shape": list(arrays["images"].shape),
    }
    return Live({**description, **kept, "beside": NETWORK if beside else None}, bytes_)


def runtime() -> str:
    """Return ONNX Runtime Web as a script of the page that defines the global ``ort``.

    Its ``import.meta.url`` is replaced, which it never uses: a notebook's cell opened from a file
    has none.
    """
    text = (
        (VENDOR / "ort.wasm.bundle.min.mjs")
        .read_text(encoding="utf-8")
        .replace("import.meta.url", '"about:blank"')
    )
    names = _EXPORTED.search(text)
    assert names is not None  # the file is as it was published
    pairs = [name.split(" as ") for name in names[1].split(",")]
    exported = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs if pair[-1] != "default")
    return f"{text[: names.start()]}globalThis.ort={{{exported}}};"
