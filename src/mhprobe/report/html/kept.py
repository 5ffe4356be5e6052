"""Reading, for a page, of what questions/beside.py has kept: maps of single images, head by head, and the network.

A map is a string per row with a letter per cell, from "A" for 0 to "/" for the map's largest value.

live.html is a run's page with the network in it, in which a reader switches heads. ONNX Runtime Web runs the network:
its WebAssembly stands compressed in the page, and nothing is fetched. The page's policy allows WebAssembly, and no
scripts but those whose hashes it names.

Shapes: B images, H heads of a site, h, w the grid of a map.
"""

import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from mhprobe.report.html.pictures import encoded, packed
from mhprobe.report.runs.run import Run

T = TypeVar("T")
Arrays = dict[str, Tensor]

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
    """Return an entry per query or kind of map: titles and pictures of the images, and maps by head, one per image."""
    if not heads:
        return []
    return (_read(run, ATTENTION, _of_queries, run, heads) or []) + (_read(run, MAPS, _of_kinds, heads) or [])


def _read(run: Run, name: str, read: Callable[..., T], *more: Any) -> T | None:
    """Return ``read(tensors, metadata, *more)``; None without the file, and if it is damaged: ``unread`` names it."""
    if not (kept := run.files.tried(run.files.tensors, name)) or not kept[0]:
        return None
    try:
        return read(*kept, *more)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        run.files.unread.append(f"{name}: {type(error).__name__}: {error}")
        return None


def _of_queries(arrays: Arrays, about: dict[str, str], run: Run, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the attention of every remaining head in the run's first test images."""
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


def _of_kinds(arrays: Arrays, about: dict[str, str], heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the maps that ``mhprobe.maps`` wrote."""
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
    """(..., h, w) maps -> uint8 of at most SIDE x SIDE, from 0 to LEVELS - 1 at a map's largest value."""
    height, width = maps.shape[-2:]
    small = adaptive_avg_pool2d(maps.float().cpu().nan_to_num(0), (min(height, SIDE), min(width, SIDE)))
    share = small.clamp(min=0) / small.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    return (share * (LEVELS - 1)).round().byte()


def _letters(grid: list[list[int]]) -> list[str]:
    return ["".join(LETTERS[level] for level in row) for row in grid]


class Live(NamedTuple):
    """A network for a page. about: data for the page's scripts. packs: compressed bytes by the id of their element."""

    about: dict[str, Any]
    packs: dict[str, str]


def live(run: Run) -> Live | None:
    """Read the network that a run has kept; None without one."""
    return _read(run, NETWORK, _network)


def _network(arrays: Arrays, about: dict[str, str]) -> Live:
    description = json.loads(about["live"])
    network = [arrays[f"piece/{n}"].numpy().tobytes() for n in range(len(description["pieces"]))]
    beside = sum(map(len, network)) > MOST
    bytes_ = {} if beside else {f"live-piece-{n}": packed(piece) for n, piece in enumerate(network)}
    bytes_["live-images"] = packed(arrays["images"].numpy().tobytes())
    bytes_["live-wasm"] = packed(lzma.decompress((VENDOR / "ort-wasm-simd-threaded.wasm.xz").read_bytes()))
    logits = [[float(f"{value:.6g}") for value in row] for row in arrays["logits"].tolist()]
    kept = {"labels": arrays["labels"].tolist(), "logits": logits, "shape": list(arrays["images"].shape)}
    return Live({**description, **kept, "beside": NETWORK if beside else None}, bytes_)


def runtime() -> str:
    """Return ONNX Runtime Web as a script of the page that defines the global ``ort``.

    Its ``import.meta.url`` is replaced, which it never uses: a notebook's cell opened from a file has none.
    """
    text = (VENDOR / "ort.wasm.bundle.min.mjs").read_text(encoding="utf-8").replace("import.meta.url", '"about:blank"')
    names = _EXPORTED.search(text)
    assert names is not None  # the file is as it was published
    pairs = [name.split(" as ") for name in names[1].split(",")]
    exported = ",".join(f"{pair[-1]}:{pair[0]}" for pair in pairs if pair[-1] != "default")
    return f"{text[: names.start()]}globalThis.ort={{{exported}}};"
