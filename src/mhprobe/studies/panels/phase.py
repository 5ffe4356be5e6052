"""Does a network need the amplitude or the phase of a frequency? Accuracy with either destroyed in one band at a time.

A Fourier coefficient of an image has an amplitude (how much there is) and a phase (where it is). In one ring of
frequencies, "phase" gives every coefficient the phase of noise and keeps its amplitude, and "amplitude" gives it that
of noise, scaled to the same energy in the ring, and keeps its phase. panels/noise.py adds to both.

Shapes: B images, F rings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.report.figures import phase as figure
from mhprobe.report.report import Result
from mhprobe.report.tables import from_rows
from mhprobe.stats.significance import mcnemar, wilson
from mhprobe.studies.panels.material import Material

DAMAGES = ("phase", "amplitude")


def phase_and_amplitude(material: Material, rings: int = 6, images: int = 1000) -> dict[str, Result]:
    """Accuracy without the phases, or without the amplitudes, of each of ``rings`` equal rings from 0 to pi.

    images: test images, at most. Frequency 0, the mean, is kept. Table: damage, low, high (the ring's ends, in units
    of pi), accuracy, accuracy_low, accuracy_high (95 %), p (McNemar, against the whole images), images.
    """
    model, data = material.model, material.data
    chosen = torch.arange(min(images, data.sizes["test"]))
    ways = [("none", 0), *((damage, ring) for damage in DAMAGES for ring in range(rings))]
    counts = torch.zeros(len(ways), 3, dtype=torch.long, device=model.device)  # right, lost, won
    total = torch.zeros((), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        for batch in data.batches("test", model.device, images=chosen):
            clean = (model(batch.images).argmax(1) == batch.labels)[batch.valid]
            total += batch.valid.sum()
            for number, (damage, ring) in enumerate(ways):
                shown = without(batch.images, batch.index, damage, ring, rings, material.seed)
                right = (model(shown).argmax(1) == batch.labels)[batch.valid]
                counts[number] += torch.stack([right.sum(), (clean & ~right).sum(), (right & ~clean).sum()])
    counts, seen = ranks.sum(counts).cpu(), ranks.sum(total).cpu()
    low, high = wilson(counts[:, 0], seen)
    p = mcnemar(counts[:, 1], counts[:, 2])
    rows: list[dict[str, Any]] = []
    for number, (damage, ring) in enumerate(ways):
        ends = {"low": "", "high": ""} if damage == "none" else {"low": ring / rings, "high": (ring + 1) / rings}
        accuracy = {"accuracy": counts[number, 0].item() / seen.item(), "accuracy_low": low[number].item()}
        tested = {"accuracy_high": high[number].item(), "p": "" if damage == "none" else p[number].item()}
        rows.append({"damage": damage, **ends, **accuracy, **tested, "images": seen.item()})
    return {"phase": Result(from_rows(rows), figure.draw(rows, material.chance))}


def without(images: Tensor, index: Tensor, damage: str, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) images without the phases or the amplitudes of a ring; "none" leaves them whole.

    index: (B,) positions of the images: an image is damaged alike whatever batch it is in.
    """
    if damage == "none":
        return images
    height, width = images.shape[-2:]
    drawn = []
    for position in index.tolist():
        generator = torch.Generator().manual_seed((seed * 1_000_003 + position) * 101 + ring)
        drawn.append(torch.randn(images.shape[1:], generator=generator, dtype=torch.float64))
    wave, noise = (torch.fft.fft2(each) for each in (images.double().cpu(), torch.stack(drawn)))
    down, across = torch.fft.fftfreq(height).double() * 2, torch.fft.fftfreq(width).double() * 2
    radius = torch.hypot(down[:, None], across[None])  # in units of pi
    inside = (radius > ring / rings) & (radius <= (ring + 1) / rings)
    amplitude, phase = (wave.abs(), noise.angle()) if damage == "phase" else (noise.abs(), wave.angle())
    energy, drawn_energy = ((each.abs() * inside).square().sum((-2, -1), keepdim=True) for each in (wave, amplitude))
    scaled = amplitude * (energy / drawn_energy.clamp(min=1e-12)).sqrt()
    found = torch.fft.ifft2(torch.where(inside, torch.polar(scaled, phase), wave)).real
    return found.to(images.device, images.dtype)
