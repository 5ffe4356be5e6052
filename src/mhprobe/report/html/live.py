"""live.html: a run's page with the network in it, so that heads are switched where the page is read.

ONNX Runtime Web runs the network: its WebAssembly stands in the page, compressed, and nothing is fetched. The policy of
the page lets WebAssembly be compiled, and no script but those whose hashes it names.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any, NamedTuple

from mhprobe.report.html.pictures import packed
from mhprobe.report.runs.run import Run

KEPT = "live.safetensors"  # what questions/beside.py leaves
MOST = 25_000_000  # bytes of a network that a page can hold
VENDOR = Path(__file__).parent / "vendor"
_EXPORTED = re.compile(r"export\{([^}]*)\};?\s*(//# sourceMappingURL=\S+\s*)?$")


class Live(NamedTuple):
    """A network for a page. about: what the page's scripts need. packs: compressed bytes by the id of their element."""

    about: dict[str, Any]
    packs: dict[str, str]


def live(run: Run) -> Live | None:
    """Return the network that a run has kept; None where it has not."""
    try:
        arrays, about = run.files.tensors(KEPT)
        if not arrays:
            return None
        told = json.loads(about["live"])
        network = [arrays[f"piece/{n}"].numpy().tobytes() for n in range(len(told["pieces"]))]
        beside = sum(map(len, network)) > MOST
        bytes_ = {} if beside else {f"live-piece-{n}": packed(piece) for n, piece in enumerate(network)}
        bytes_["live-images"] = packed(arrays["images"].numpy().tobytes())
    except (ValueError, KeyError, TypeError) as error:
        run.unread.append(f"{KEPT}: {error}")
        return None
    bytes_["live-wasm"] = packed(lzma.decompress((VENDOR / "ort-wasm-simd-threaded.wasm.xz").read_bytes()))
    logits = [[float(f"{value:.6g}") for value in row] for row in arrays["logits"].tolist()]
    kept = {"labels": arrays["labels"].tolist(), "logits": logits, "shape": list(arrays["images"].shape)}
    return Live({**told, **kept, "beside": KEPT if beside else None}, bytes_)


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
