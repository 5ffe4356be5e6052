"""Which frequencies does a network need? Accuracy under noise that is limited to a band of frequencies.

After Park & Kim, 2022, arXiv 2202.06709, section 2: Gaussian noise is filtered to a ring of frequencies, scaled to the
same size in every ring, and added to the image as the model sees it (normalised).

Shapes: B images, F rings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.report.figures import noise as figure
from mhprobe.report.report import Result
from mhprobe.report.tables import from_rows
from mhprobe.stats.significance import mcnemar, wilson
from mhprobe.studies.panels.material import Material


def band_noise(material: Material, rings: int = 6, strength: float = 0.5, images: int = 1000) -> dict[str, Result]:
    """Accuracy with noise in each of ``rings`` equal rings from frequency 0 to pi, and without.

    strength: standard deviation of the noise, in units of the normalised image. images: at most so many test images.
    Table: low, high (the ring's ends, in units of pi), accuracy, accuracy_low, accuracy_high (95 %), p (McNemar,
    against the clean images), images.
    """
    model, data = material.model, material.data
    chosen = torch.arange(min(images, data.sizes["test"]))
    counts = torch.zeros(rings + 1, 3, dtype=torch.long, device=model.device)  # right, lost, won
    total = torch.zeros((), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        for batch in data.batches("test", model.device, images=chosen):
            clean = (model(batch.images).argmax(1) == batch.labels)[batch.valid]
            total += batch.valid.sum()
            counts[0, 0] += clean.sum()
            for ring in range(rings):
                noise = ring_noise(batch.images, batch.index, ring, rings, material.seed)
                right = (model(batch.images + strength * noise).argmax(1) == batch.labels)[batch.valid]
                counts[ring + 1] += torch.stack([right.sum(), (clean & ~right).sum(), (right & ~clean).sum()])
    counts, number = ranks.sum(counts).cpu(), ranks.sum(total).cpu()
    low, high = wilson(counts[:, 0], number)
    p = mcnemar(counts[:, 1], counts[:, 2])
    rows: list[dict[str, Any]] = [
        {
            **{"low": (k - 1) / rings if k else "", "high": k / rings if k else ""},
            **{"accuracy": counts[k, 0].item() / number.item(), "accuracy_low": low[k].item()},
            **{"accuracy_high": high[k].item(), "p": p[k].item() if k else "", "images": number.item()},
        }
        for k in range(rings + 1)
    ]
    return {"noise": Result(from_rows(rows), figure.draw(rows, strength, material.chance))}


def ring_noise(images: Tensor, index: Tensor, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) noise whose frequencies lie in the ring, of standard deviation 1 in every image.

    index: (B,) positions of the images: an image gets the same noise whatever batch it is in.
    """
    height, width = images.shape[-2:]
    generator = torch.Generator()
    drawn = []
    for position in index.tolist():
        generator.manual_seed((seed * 1_000_003 + position) * 101 + ring)
        drawn.append(torch.randn(images.shape[1:], generator=generator, dtype=torch.float64))
    wave = torch.fft.fft2(torch.stack(drawn))
    down, across = torch.fft.fftfreq(height).double() * 2, torch.fft.fftfreq(width).double() * 2
    radius = torch.hypot(down[:, None], across[None])  # in units of pi
    inside = (radius > ring / rings) & (radius <= (ring + 1) / rings)
    noise = torch.fft.ifft2(wave * inside).real
    noise = noise / noise.flatten(1).std(1, correction=0).clamp(min=1e-12)[:, None, None, None]
    return noise.to(images.device, images.dtype)
