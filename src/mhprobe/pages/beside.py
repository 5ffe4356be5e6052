"""Keep attention of every head, and the network with test images, beside a run's results, for its pages.

Attention is for the head atlas of report.html, the network for a page that switches heads live.
Neither fails the run.

Shapes: B images, T tokens, h x w token grid.
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import interpolate

from mhprobe.backbones import attach, gives_features, puts_out_features
from mhprobe.data.augment import channels_shown, grey, in_colours, middle, normalise
from mhprobe.data.base import ImageData
from mhprobe.data.draws import evenly_spread
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite
from mhprobe.io.files import write
from mhprobe.pages.html.kept import ATTENTION, MOST, NETWORK, levels
from mhprobe.pages.live import ModelPart, Stored, parts_of_model, stored
from mhprobe.recording.looks import Query, looks_by_name, visible, who_looks
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting

IMAGES = 3  # of the test split, evenly, whose attention is kept
IMAGES_LIVE = 500  # with the network; a page answers in seconds
_PICTURE = 64  # pixels of a picture's longer side

log = logging.getLogger(__name__)


def keep_attention(folder: Path, model: nn.Module, data: ImageData) -> Path | None:
    """Write ``folder/attention.safetensors``: a map per head, image and query.

    None, with a warning, if that fails.
    """
    try:
        return _keep(folder, model.eval(), data)
    except Exception as error:  # no reason to lose the run
        log.warning("report.html is without attention maps: %s", error)
        return None


def queries(site: HeadSite) -> dict[str, Query]:
    """Return queries by name: the class token and registers where there are any, or all patches; and one patch."""
    height, width = site.token_grid
    by_name: dict[str, Query] = (
        {"the class token": "class"} if site.class_token else {"all patches (mean)": "mean"}
    )
    if site.prefix_tokens > site.class_token:
        by_name["the registers (mean)"] = "registers"
    return {**by_name, "the patch in the middle": (height // 2, width // 2)}


@torch.no_grad()
def _keep(folder: Path, model: nn.Module, data: ImageData) -> Path:
    chosen, names = evenly_spread(IMAGES, data.sizes["test"]), data.class_names
    batch = data.some("test", IMAGES, next(model.parameters()).device)
    layout, hidden = visible(model)  # some heads may have no weights to look at
    asking = [
        {name: who_looks(site, query) for name, query in queries(site).items()}
        for site in layout.sites
    ]
    received, logits = looks_by_name(model, batch.images, layout, asking)
    titles = [f"image {image}" for image in chosen]
    if names:
        titles = [
            f"{title}: {names[label]}"
            for title, label in zip(titles, batch.labels.tolist(), strict=True)
        ]
    if not gives_features(model):
        taken = logits.argmax(1).tolist()
        titles = [
            f"{title}, taken for {names[label]}" for title, label in zip(titles, taken, strict=True)
        ]
    pictures = middle(data.stored("test", chosen).images, data.input_spec.size).contiguous()
    if (longest := max(pictures.shape[2:])) > _PICTURE:
        size = [max(1, round(side * _PICTURE / longest)) for side in pictures.shape[2:]]
        pictures = interpolate(pictures.float(), size=size, mode="area").round().to(torch.uint8)
    arrays = {"pictures": in_colours(pictures)[0].contiguous()}
    by_query: dict[str, list[str]] = {}  # names of sites
    for number, site in enumerate(layout.sites):
        for name, looked in received[number].items():
            arrays[f"{name}/{site.name}"] = levels(looked)
            by_query.setdefault(name, []).append(site.name)
    about = {"titles": json.dumps(titles), "queries": json.dumps(by_query), "hidden": hidden}
    return write(folder / ATTENTION, save(arrays, about))


def keep_live(folder: Path, model: nn.Module, data: ImageData) -> str:
    """Write ``folder/live.safetensors`` for a run's test images. Return the error; "" for none."""
    try:
        chosen = evenly_spread(IMAGES_LIVE, data.sizes["test"])
        batch = data.stored("test", chosen)
        names = [f"image {number}" for number in chosen]
        keep(
            folder,
            model,
            batch.images,
            batch.labels,
            data.class_names,
            names,
            dataclasses.asdict(data.input_spec),
        )
    except Exception as error:  # no reason to lose the run
        return str(error) or type(error).__name__
    return ""


def keep(
    folder: Path,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    titles: Sequence[str],
    spec: dict[str, Any],
    beside: bool = True,
) -> Path:
    """Write the network as ONNX, the images in its input size, and torch's logits.

    Weights are float32, or the first of float16 and int8 that fits into a page; else float16, and
    the page asks for this file. model: with gates. images: (N, C, height, width) uint8, of the
    network's channels; colours turn grey for one. labels: (N,) int64. classes: names; numbers if
    empty. spec: size, mean and std. beside: True if the page can ask. UserError for a network that
    gives features, is too large, or cannot be exported.
    """
    pixels = _pixels(images, tuple(spec["size"]), len(spec["mean"]))
    seen = normalise(pixels, spec["size"], spec["mean"], spec["std"])
    weight = next(model.parameters())
    with inspecting(model, gradients=False):
        logits = torch.cat(
            [logits_of(model(some.to(weight)), model).cpu() for some in seen.split(100)]
        ).float()
    classes = classes or [
        str(number) for number in range(0 if puts_out_features(model) else logits.shape[-1])
    ]
    _refuse_unfit(logits, labels, len(classes))
    exports, sites = parts_of_model(model, seen[:2]), attach(model).layout.of("head").sites
    kind, small = _small(exports, beside)
    about = {
        "stored": kind,
        "pieces": [[piece.first, piece.heads, piece.sites] for piece in exports],
        "spec": {key: list(value) for key, value in spec.items()},
        "sites": [
            None if site.windows else [*site.token_grid, site.prefix_tokens, site.class_token]
            for site in sites
        ],
        "classes": list(classes),
        "titles": list(titles),
        "shown": channels_shown(pixels.shape[1]),
    }
    arrays = {
        f"piece/{n}": torch.frombuffer(bytearray(piece.onnx), dtype=torch.uint8)
        for n, piece in enumerate(small)
    }
    arrays |= {
        "images": pixels.contiguous(),
        "labels": labels.cpu().long(),
        "logits": logits.contiguous(),
    }
    return write(folder / NETWORK, save(arrays, {"live": json.dumps(about)}))


def _pixels(images: Tensor, size: tuple[int, int], channels: int) -> Tensor:
    """(N, channels, height, width) uint8, the middle of images, in the network's input size."""
    pixels = middle(images.cpu(), size)
    if (channels, pixels.shape[1]) == (1, 3):
        pixels = grey(pixels)
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    # rounded, for page and torch alike
    pixels = interpolate(pixels.float(), size=size, mode="bicubic", antialias=True)
    return pixels.clamp(0, 255).round().byte()


def _refuse_unfit(logits: Tensor, labels: Tensor, classes: int) -> None:
    """UserError for a network that gives features, and for a label that is of no class."""
    if logits.dim() != 2 or logits.shape[1] != classes:
        raise UserError(
            "live: expected a network with logits of the classes, got one that gives features."
        )
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        raise UserError(
            f"live: labels: expected 0 to {classes - 1}, for the model gives {classes} logits, got "
            f"{int(labels[int(wrong[0])])} for image {int(wrong[0])}."
        )


def _small(exports: Sequence[ModelPart], beside: bool) -> tuple[Stored, list[ModelPart]]:
    """The pieces with the finest weights that fit into a page; float16 beside a page.

    UserError where none fits and the page cannot ask.
    """
    kinds: tuple[Stored, ...] = ("float32", "float16", "int8")
    for kind in kinds:
        small = [stored(piece, kind) for piece in exports]
        size = sum(len(piece.onnx) for piece in small)
        if size <= MOST:
            return kind, small
    if not beside:
        raise UserError(
            f"live: the network has {size / 1e6:.0f} MB as int8, expected at most {MOST / 1e6:.0f}."
        )
    return "float16", [stored(piece, "float16") for piece in exports]
