"""Accuracy under noise that is limited to a band of frequencies.

After Park & Kim, 2022, arXiv 2202.06709, section 2: Gaussian noise is filtered to a ring of frequencies, scaled to the
same size in every ring, and added to the image as the model sees it (normalised).

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


def band_noise(material: Material, rings: int = 6, strength: float = 0.5, images: int = 1000) -> dict[str, Result]:
    """Accuracy with noise in each of ``rings`` equal rings from frequency 0 to pi, and without.

    strength: standard deviation of the noise, in units of the normalised image. images: at most so many test images.
    Table: low, high (the ring's ends, in units of pi), and the columns of ``rings.accuracies``; drops are against the
    clean images.
    """

    def change(batch: Batch, ring: int) -> Tensor:
        return batch.images + strength * ring_noise(batch.images, batch.index, ring, rings, material.seed)

    changes = [functools.partial(change, ring=ring) for ring in range(rings)]
    about = [{"low": "", "high": ""}, *(ends(ring, rings) for ring in range(rings))]
    rows = [{**ring, **found} for ring, found in zip(about, accuracies(material, changes, images).rows, strict=True)]
    return {"noise": Result(from_rows(rows), figure.noise(rows, strength, material.chance), of=material.of(images))}


def ring_noise(images: Tensor, index: Tensor, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) noise whose frequencies lie in the ring, of standard deviation 1 in every image.

    index: (B,) positions of the images: an image gets the same noise whatever batch it is in.
    """
    wave = torch.fft.fft2(drawn(images, index, ring, seed))
    noise = torch.fft.ifft2(wave * inside(ring, rings, *images.shape[-2:])).real
    noise = noise / noise.flatten(1).std(1, correction=0).clamp(min=1e-12)[:, None, None, None]
    return noise.to(images.device, images.dtype)
