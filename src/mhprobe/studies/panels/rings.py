"""Rings of frequencies: accuracy on images of which something is changed in one ring at a time.

Shapes: B images, F rings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.measures.outcomes import outcomes
from mhprobe.stats.significance import mcnemar, wilson
from mhprobe.studies.panels.material import Material


def accuracies(material: Material, changes: Sequence[Callable[[Batch], Tensor]], images: int) -> list[dict[str, Any]]:
    """Rows of a table: for the first ``images`` test images whole, and after each of ``changes``.

    Columns: accuracy, accuracy_low, accuracy_high (95 %), p (McNemar, against the whole images), images.
    """
    model, data = material.model, material.data
    counts = torch.zeros(1 + len(changes), 3, dtype=torch.long, device=model.device)  # right, lost, won
    total = torch.zeros((), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        for batch in data.batches("test", model.device, images=images):
            whole = outcomes(model(batch.images), batch.labels)[0][batch.valid]
            total += batch.valid.sum()
            counts[0, 0] += whole.sum()
            for number, change in enumerate(changes, start=1):
                right = outcomes(model(change(batch)), batch.labels)[0][batch.valid]
                counts[number] += torch.stack([right.sum(), (whole & ~right).sum(), (right & ~whole).sum()])
    counts, seen = ranks.sum(counts).cpu(), ranks.sum(total).cpu()
    low, high = wilson(counts[:, 0], seen)
    p = mcnemar(counts[:, 1], counts[:, 2])
    return [
        {
            "accuracy": counts[number, 0].item() / seen.item(),
            "accuracy_low": low[number].item(),
            "accuracy_high": high[number].item(),
            "p": p[number].item() if number else "",
            "images": seen.item(),
        }
        for number in range(1 + len(changes))
    ]


def ends(ring: int, rings: int) -> dict[str, Any]:
    """Columns low and high: where a ring begins and ends, in units of pi."""
    return {"low": ring / rings, "high": (ring + 1) / rings}


def inside(ring: int, rings: int, height: int, width: int) -> Tensor:
    """(height, width) bool, whether a frequency of ``torch.fft.fft2`` lies in the ring; frequency 0 lies in none."""
    down, across = torch.fft.fftfreq(height).double() * 2, torch.fft.fftfreq(width).double() * 2
    radius = torch.hypot(down[:, None], across[None])  # in units of pi
    return (radius > ring / rings) & (radius <= (ring + 1) / rings)


def drawn(images: Tensor, index: Tensor, ring: int, seed: int) -> Tensor:
    """Gaussian noise of the images' shape, float64, on the CPU: an image gets its own, whatever batch it is in.

    index: (B,) positions of the images.
    """
    generator = torch.Generator()
    noise = []
    for position in index.tolist():
        generator.manual_seed((seed * 1_000_003 + position) * 101 + ring)
        noise.append(torch.randn(images.shape[1:], generator=generator, dtype=torch.float64))
    return torch.stack(noise)
