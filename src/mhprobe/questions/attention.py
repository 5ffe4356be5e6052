"""Attention of every head in a few test images, kept beside a run's results for the head atlas of its report.html.

Shapes: B images, T tokens, h x w token grid.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from mhprobe.backbones import gives_features
from mhprobe.data.base import ImageData
from mhprobe.data.draws import evenly
from mhprobe.gates import gates_of
from mhprobe.heads import HeadSite
from mhprobe.io.files import write
from mhprobe.recording.looks import Query, looked_at, who_looks
from mhprobe.recording.record import record
from mhprobe.report.html.attention import KEPT, levels

IMAGES = 3
_PICTURE = 64  # pixels of a picture's longer side

log = logging.getLogger(__name__)


def keep_attention(folder: Path, model: nn.Module, data: ImageData) -> Path | None:
    """``folder/attention.safetensors``: a map per head, image and query. Never fails the run: None after a line.

    model: with gates, on any device; left in eval mode. The images are taken evenly from the test split.
    """
    try:
        return _keep(folder, model.eval(), data)
    except Exception as error:  # the results are there: pictures for the atlas are no reason to lose the run
        log.warning("report.html is without attention maps: %s", error)
        return None


def queries(site: HeadSite) -> dict[str, Query]:
    """Return queries by name: the class token and registers where there are any, or all patches; and one patch."""
    height, width = site.token_grid
    registers = site.prefix_tokens > site.class_token
    first: dict[str, Query] = {"the class token": "class"} if site.class_token else {"all patches (mean)": "mean"}
    return {
        **first,
        **({"the registers (mean)": "registers"} if registers else {}),
        "the patch in the middle": (height // 2, width // 2),
    }


@torch.no_grad()
def _keep(folder: Path, model: nn.Module, data: ImageData) -> Path:
    from safetensors.torch import save

    features = gives_features(model)
    chosen = evenly(IMAGES, data.sizes["test"])
    batch = data.some("test", IMAGES, next(model.parameters()).device)
    recorded = record(model, batch.images, needs={"attn"})
    attn = recorded.need("attn", "attention")
    taken = recorded.logits.argmax(1).tolist()
    titles = [
        f"image {image}" + _classes(data.class_names, label, None if features else found)
        for image, label, found in zip(chosen, batch.labels.tolist(), taken, strict=True)
    ]
    arrays = {"pictures": _small(data.stored("test", chosen).images)}
    asked: dict[str, list[str]] = {}  # by query, the tensors of the sites
    for number, site in enumerate(gates_of(model).layout.of("head").sites):
        for name, query in queries(site).items():
            arrays[f"{name}/{site.name}"] = levels(looked_at(attn[number], site, who_looks(site, query)))
            asked.setdefault(name, []).append(site.name)
    return write(folder / KEPT, save(arrays, {"titles": json.dumps(titles), "queries": json.dumps(asked)}))


def _classes(names: Sequence[str], label: int, taken: int | None) -> str:
    """Return the label of an image and its predicted class, where they are known."""
    shown = f": {names[label]}" if names else ""
    return shown if taken is None else f"{shown}, taken for {names[taken]}"


def _small(images: Tensor) -> Tensor:
    """(B, 3, height, width) uint8, no longer than _PICTURE."""
    longest = max(images.shape[2:])
    if longest <= _PICTURE:
        return images.contiguous()
    size = [max(1, round(side * _PICTURE / longest)) for side in images.shape[2:]]
    return interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)
