"""The network and test images beside a run's results, for a page in which heads are switched live."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from mhprobe.backbones import attach, puts_out_features
from mhprobe.data.augment import normalise
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.draws import evenly
from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting
from mhprobe.report.html.live import KEPT, MOST
from mhprobe.surgery.live import Stored, pieces, stored

IMAGES = 500  # of the test split, evenly; a page answers in seconds


def keep_live(folder: Path, model: nn.Module, data: ImageData) -> str:
    """Write ``folder/live.safetensors``, of a run's test images. Never fails the run: returns why it could not."""
    try:
        chosen = evenly(IMAGES, data.sizes["test"])
        batch = data.stored("test", chosen)
        names = [f"image {number}" for number in chosen]
        spec = dataclasses.asdict(data.spec or InputSpec(data.stored_size))
        keep(folder, model, batch.images, batch.labels, data.class_names, names, spec)
    except Exception as error:  # the results are there: a live page is no reason to lose the run
        return str(error) or type(error).__name__
    return ""


def keep(
    folder: Path, model: nn.Module, images: Tensor, labels: Tensor, classes: Sequence[str], titles: Sequence[str],
    spec: dict[str, Any], beside: bool = True,
) -> Path:  # fmt: skip
    """Write the network as ONNX, the images as the network sees them, and what torch says of them.

    Weights are float32, or float16 or int8 where they have room in a page only so; where they have not even then,
    float16, and the page asks for this file. model: with gates. images: (N, 3, height, width) uint8. labels: (N,)
    int64. classes: names; their numbers if empty. spec: size, mean and std. beside: whether the page can ask. UserError
    for a network that gives features, has no room, or cannot be exported.
    """
    pixels = _resized(images.cpu(), tuple(spec["size"]))
    seen = normalise(pixels, spec["size"], spec["mean"], spec["std"])
    device = next(model.parameters()).device
    with inspecting(model, gradients=False):
        logits = torch.cat([logits_of(model(some.to(device))).cpu() for some in seen.split(100)]).float()
    classes = classes or [str(number) for number in range(0 if puts_out_features(model) else logits.shape[-1])]
    if logits.dim() != 2 or logits.shape[1] != len(classes):
        raise UserError("live: expected a network with logits of the classes, got one that gives features.")
    made, sites = pieces(model, seen[:2]), attach(model).layout.of("head").sites
    kinds: tuple[Stored, ...] = ("float32", "float16", "int8")
    for kind in kinds:
        small = [stored(piece, kind) for piece in made]
        if (size := sum(len(piece.onnx) for piece in small)) <= MOST:
            break
    else:
        if not beside:
            raise UserError(f"live: the network has {size / 1e6:.0f} MB as int8, expected at most {MOST / 1e6:.0f}.")
        kind = "float16"
        small = [stored(piece, kind) for piece in made]
    about = {
        "stored": kind,
        "pieces": [[piece.first, piece.heads, piece.sites] for piece in made],
        "spec": {key: list(value) for key, value in spec.items()},
        "sites": [None if site.windows else [*site.token_grid, site.prefix_tokens, site.class_token] for site in sites],
        "classes": list(classes),
        "titles": list(titles),
    }
    arrays = {f"piece/{n}": torch.frombuffer(bytearray(piece.onnx), dtype=torch.uint8) for n, piece in enumerate(small)}
    arrays |= {"images": pixels.contiguous(), "labels": labels.cpu().long(), "logits": logits.contiguous()}
    from safetensors.torch import save

    return write(folder / KEPT, save(arrays, {"live": json.dumps(about)}))


def _resized(images: Tensor, size: tuple[int, ...]) -> Tensor:
    """(N, 3, *size) uint8: whole numbers, so that the page has exactly what torch is asked about."""
    if tuple(images.shape[-2:]) == size:
        return images
    return interpolate(images.float(), size=size, mode="bicubic", antialias=True).clamp(0, 255).round().byte()
