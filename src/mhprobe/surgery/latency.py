"""How much time would be saved by removing heads? A straight line per layer, through two measured points.

A layer's attention is timed as it is and with half of its heads removed, on what really enters it; the line through
both is what a removed head saves. Times are wall-clock medians on the machine at hand, dense and halved in turns, so
that a machine that slows down slows both. MLPs and the rest are timed as part of the whole forward pass.

Shapes: A heads, B images.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.heads import HeadLayout
from mhprobe.surgery.removal import prune_heads


def head_latency(model: nn.Module, layout: HeadLayout, images: Tensor, repeats: int = 15) -> Tensor:
    """(A,) float64, the share of the whole forward pass's time that is saved when this head is removed.

    model: a timm model; it is not changed. images: (B, 3, height, width), as many as will be asked of it at once.
    """
    half = torch.cat([torch.arange(site.num_heads) >= max(1, site.num_heads // 2) for site in layout.sites])
    halved = prune_heads(model, half)
    inputs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    handles = []
    for site in layout.sites:

        def keep(_module: nn.Module, args: Any, kwargs: Any, name: str = site.name) -> None:
            inputs[name] = (args, kwargs)

        handles.append(model.get_submodule(site.name).register_forward_pre_hook(keep, with_kwargs=True))
    training = model.training
    model.eval(), halved.eval()
    try:
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            model(images)
            for handle in handles:
                handle.remove()
            (whole,) = _medians([functools.partial(model, images)], repeats, images.device)
            saved = []
            for site in layout.sites:
                args, kwargs = inputs[site.name]
                dense, fewer = (m.get_submodule(site.name) for m in (model, halved))
                runs = [functools.partial(attention, *args, **kwargs) for attention in (dense, fewer)]
                before, after = _medians(runs, repeats, images.device)
                removed = site.num_heads - max(1, site.num_heads // 2)
                saved += [max(0.0, before - after) / removed if removed else before] * site.num_heads
    finally:
        model.train(training)
    return torch.tensor(saved, dtype=torch.float64) / whole


def _medians(runs: Sequence[Callable[[], Any]], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each run, taken in turns; the first turn warms up."""
    seconds = torch.zeros(repeats + 1, len(runs))
    for turn in range(repeats + 1):
        for number, run in enumerate(runs):
            _wait(device)
            begin = time.perf_counter()
            run()
            _wait(device)
            seconds[turn, number] = time.perf_counter() - begin
    return seconds[1:].median(0).values.tolist()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
