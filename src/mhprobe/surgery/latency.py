"""A table of latency: the time that each layer takes at several widths, measured once on a machine and kept in a file.

A knapsack is priced by it (Shen et al. 2022, arXiv 2110.10811, use such a table). More units never take less time: the
measured times are fitted by the nearest ones that do not fall with the width (isotonic regression), with straight lines
between the widths that were measured. Below the narrowest of them nothing more is saved.

Shapes: A units of all sites, M masks, H units of one site.
"""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.masking.parts.limits import Cost
from mhprobe.surgery.costs import layer_times
from mhprobe.surgery.speed import device_name, evenly

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)  # of each layer's units that are removed, but for one


def latency_cost(file: str | Path, model: nn.Module, layout: HeadLayout, images: Tensor, repeats: int = 15) -> Cost:
    """(M, A) masks -> (M,) the share of the time that is left, by the table in ``file``, made if it is missing.

    model: with or without gates. images: (B, 3, height, width), as many as will be asked of it at once.
    UserError for a file that is no table, and for one of another machine, number of images, or network.
    """
    file, here = Path(file), f"{device_name(images.device)}, torch {torch.__version__}"
    wanted = {"machine": here, "images": len(images), "layout": layout.digest}
    if not file.exists():
        masks = [evenly(layout, share) for share in SHARES]
        whole, seconds = layer_times(model, layout, masks, images, repeats)
        widths = [[int((~part).sum()) for part in layout.split(mask)] for mask in masks]
        table: dict[str, Any] = {**wanted, "whole": whole, "seconds": seconds}
        table["widths"] = list(zip(*widths, strict=True))
        write(file, (json.dumps(table) + "\n").encode())
    table = _read(file)
    for key, value in wanted.items():
        if table.get(key) != value:
            raise UserError(
                f"latency_table: {file} has {key} {quoted(table.get(key))}, expected {quoted(value)}. Name a "
                f"file that is not there yet: it is measured here."
            )
    return functools.partial(_left, layout, [_fitted(*rows) for rows in _rows(table, layout)], table["whole"])


def _read(file: Path) -> dict[str, Any]:
    try:
        table = json.loads(file.read_text())
    except (OSError, ValueError):
        table = None
    if not isinstance(table, dict) or not {"machine", "whole", "widths", "seconds"} <= set(table):
        raise UserError(f"latency_table: {file} is no table of latency. Name a file that is not there yet.")
    return table


def _rows(table: dict[str, Any], layout: HeadLayout) -> list[tuple[int, list[int], list[float]]]:
    counts = [site.num_heads for site in layout.sites]
    return list(zip(counts, table["widths"], table["seconds"], strict=True))


def _fitted(count: int, widths: list[int], seconds: list[float]) -> Tensor:
    """(H + 1,) float64 seconds at every width from 0 on."""
    from sklearn.isotonic import IsotonicRegression

    fit = IsotonicRegression(out_of_bounds="clip").fit(widths, seconds)
    return torch.from_numpy(fit.predict(range(count + 1))).double()


def _left(layout: HeadLayout, seconds: list[Tensor], whole: float, masks: Tensor) -> Tensor:
    kept = [(~part).sum(1).cpu() for part in layout.split(masks)]
    saved = sum((time_H[-1] - time_H[left_M] for time_H, left_M in zip(seconds, kept, strict=True)), torch.zeros(()))
    return 1 - saved / whole
