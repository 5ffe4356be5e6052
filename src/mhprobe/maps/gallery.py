"""Every kind of map of some images, judged, drawn and written down: what ``python -m mhprobe.maps`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mhprobe.data.base import ImageData
from mhprobe.data.loader import Picks
from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.maps.base import MapKind
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.report.figures import maps as figures
from mhprobe.report.figures.maps import Judged
from mhprobe.report.report import Report, Result
from mhprobe.report.tables import Table


def judged(model: nn.Module, images: Tensor, labels: Tensor | None, kind: MapKind, **options: Any) -> dict[str, Judged]:
    """A kind's maps of images (B, 3, height, width), each with its areas, on the CPU. options: of ``faithfulness``."""
    maps = kind(model, images, labels)
    judgements = faithfulness(model, images, list(maps.values()), **options)
    return {
        name: Judged(values.float().cpu(), *(area.cpu() for area in areas))
        for (name, values), areas in zip(maps.items(), judgements, strict=True)
    }


def write_maps(
    report: Report,
    model: nn.Module,
    data: ImageData,
    chosen: Sequence[int],
    kinds: Mapping[str, MapKind],
    **options: Any,
) -> None:
    """Write the table ``maps``, the figures ``maps`` and ``<kind>_<image>``, and the maps as maps.safetensors.

    chosen: positions in the test split. options: of ``faithfulness``.
    """
    results, found = gallery(model, data, chosen, kinds, **options)
    for name, result in results.items():
        report.add(name, result)
    from safetensors.torch import save

    raw = {f"{kind}/{name}": one.maps.contiguous() for kind, maps in found.items() for name, one in maps.items()}
    write(report.folder / "maps.safetensors", save(raw))
    for name, one in _whole(kinds, found).items():
        deletion, insertion, by_chance, up_by_chance = (float(area.mean()) for area in one[1:])
        print(
            f"{name}: deletion {deletion:.3f} (random {by_chance:.3f}, lower is better), "
            f"insertion {insertion:.3f} (random {up_by_chance:.3f}, higher is better)"
        )


def gallery(
    model: nn.Module, data: ImageData, chosen: Sequence[int], kinds: Mapping[str, MapKind], **options: Any
) -> tuple[dict[str, Result], dict[str, dict[str, Judged]]]:
    """The results ``maps`` and ``<kind>_<image>``, and by kind the judged maps. Arguments: as of ``write_maps``.

    UserError for no kind, and for positions that the test split has not.
    """
    if not kinds:
        raise UserError("maps: no kind is chosen, expected at least one, e.g. maps=[rollout,relevance_map].")
    size = data.sizes["test"]
    if not chosen or not all(0 <= image < size for image in chosen):
        raise UserError(f"images: expected positions from 0 to {size - 1} in the test split, got {list(chosen)}.")
    batch = data.splits["test"][Picks(np.asarray(chosen), np.ones(len(chosen), dtype=bool))]
    pictures = batch.images.float() / 255
    batch = data.transform(batch, train=False)
    device = next(model.parameters()).device
    images, labels = batch.images.to(device), batch.labels.to(device)
    with torch.inference_mode():
        probability, predicted = model.eval()(images).double().softmax(1).cpu().max(1)
    names = data.class_names
    results: dict[str, Result] = {}
    every: dict[str, dict[str, Judged]] = {}
    rows: list[list[Any]] = []
    facts = list(zip(chosen, batch.labels.tolist(), predicted.tolist(), probability.tolist(), strict=True))
    titles = [f"image {image}: {names[label]}\n→ {names[best]} {p:.2f}" for image, label, best, p in facts]
    for kind, make in kinds.items():
        found = judged(model, images, labels, make, **options)
        every[kind] = found
        for name, one in found.items():
            areas = torch.stack(one[1:], 1).tolist()
            for (image, label, best, p), numbers in zip(facts, areas, strict=True):
                rows.append([image, names[label], names[best], p, kind, name, *numbers])
        for number, image in enumerate(chosen if make.per_head else ()):
            drawn = figures.draw_heads(pictures[number], titles[number], found, number)
            results[f"{kind}_{image}"] = Result(figure=drawn)
    columns = ["image", "label", "predicted", "probability", "kind", "map", *Judged._fields[1:]]
    whole = _whole(kinds, every)
    overview = figures.draw(pictures, titles, whole) if whole else None
    return {**results, "maps": Result(Table(columns, rows), overview)}, every


def _whole(kinds: Mapping[str, MapKind], found: Mapping[str, dict[str, Judged]]) -> dict[str, Judged]:
    """Those that are one map per image."""
    return {name: one for kind, maps in found.items() if not kinds[kind].per_head for name, one in maps.items()}
