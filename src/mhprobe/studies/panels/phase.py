"""Does a network need the amplitude or the phase of a frequency? Accuracy with either destroyed in one band at a time.

A Fourier coefficient of an image has an amplitude (how much there is) and a phase (where it is). In one ring of
frequencies, "phase" gives every coefficient the phase of noise and keeps its amplitude, and "amplitude" gives it that
of noise, scaled to the same energy in the ring, and keeps its phase. panels/noise.py adds to both.

Shapes: B images, F rings.
"""

import functools

import torch
from torch import Tensor

from mhprobe.data.batch import Batch
from mhprobe.questions.material import Material
from mhprobe.report.figures import frequencies as figure
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows
from mhprobe.studies.panels.rings import accuracies, drawn, ends, inside

DAMAGES = ("phase", "amplitude")


def phase_and_amplitude(material: Material, rings: int = 6, images: int = 1000) -> dict[str, Result]:
    """Accuracy without the phases, or without the amplitudes, of each of ``rings`` equal rings from 0 to pi.

    images: test images, at most. Frequency 0, the mean, is kept. Table: damage, low, high (the ring's ends, in units
    of pi), and the columns of ``rings.accuracies``; drops are against the whole images. Table ``difference``, a row per
    ring: how much accuracy the phases cost beyond the amplitudes, as ``Accuracies.drop``, Holm over rings.
    """
    ways = [(damage, ring) for damage in DAMAGES for ring in range(rings)]

    def change(batch: Batch, damage: str, ring: int) -> Tensor:
        return without(batch.images, batch.index, damage, ring, rings, material.seed)

    changes = [functools.partial(change, damage=damage, ring=ring) for damage, ring in ways]
    about = [
        {"damage": "none", "low": "", "high": ""},
        *({"damage": damage, **ends(ring, rings)} for damage, ring in ways),
    ]
    found = accuracies(material, changes, images)
    rows = [{**way, **row} for way, row in zip(about, found.rows, strict=True)]
    phase = torch.arange(1, 1 + rings)
    beyond = found.drop(before=phase + rings, after=phase)  # a drop from one to the other: both damage the same images
    difference = [
        {**ends(ring, rings), **{name: column[ring].item() for name, column in beyond.items()}} for ring in range(rings)
    ]
    marked = [row["p_holm"] < 0.05 for row in difference]
    return {
        "phase": Result(from_rows(rows), figure.phase(rows, marked, material.chance), of=material.of(images)),
        "difference": Result(from_rows(difference)),
    }


def without(images: Tensor, index: Tensor, damage: str, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) images without the phases or the amplitudes of a ring.

    index: (B,) positions of the images: an image is damaged alike whatever batch it is in.
    """
    wave, noise = (torch.fft.fft2(each) for each in (images.double().cpu(), drawn(images, index, ring, seed)))
    here = inside(ring, rings, *images.shape[-2:])
    amplitude, phase = (wave.abs(), noise.angle()) if damage == "phase" else (noise.abs(), wave.angle())
    energy, drawn_energy = ((each.abs() * here).square().sum((-2, -1), keepdim=True) for each in (wave, amplitude))
    scaled = amplitude * (energy / drawn_energy.clamp(min=1e-12)).sqrt()
    found = torch.fft.ifft2(torch.where(here, torch.polar(scaled, phase), wave)).real
    return found.to(images.device, images.dtype)
