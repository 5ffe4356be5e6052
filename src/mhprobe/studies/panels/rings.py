"""Rings of frequencies: accuracy on images of which something is changed in one ring at a time.

Shapes: B images, C ways to show them (whole, and one for each change), F rings.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.measures.parts.losses import outcomes
from mhprobe.questions.material import Material
from mhprobe.stats.significance import holm, mcnemar, paired_difference, wilson


class Accuracies(NamedTuple):
    """Accuracy under damage by rings of frequencies.

    rows: of a table, the whole images first. joint: (C, C) images that two of them both get right; of images: ().
    """

    rows: list[dict[str, Any]]
    joint: Tensor
    images: Tensor

    def drop(self, before: Tensor, after: Tensor) -> dict[str, Tensor]:
        """Accuracy before - after, of images whose numbers in ``rows`` these are, on the same test images.

        drop with drop_low and drop_high (95 %, Newcombe), p (exact McNemar), p_holm: over those that are asked for.
        """
        both = self.joint[before, after]
        lost, won = self.joint.diagonal()[before] - both, self.joint.diagonal()[after] - both
        low, high = paired_difference(both, lost, won, self.images)
        p = mcnemar(lost, won)
        drop = (lost - won).double() / self.images
        return {"drop": drop, "drop_low": low, "drop_high": high, "p": p, "p_holm": holm(p)}


def accuracies(material: Material, changes: Sequence[Callable[[Batch], Tensor]], images: int) -> Accuracies:
    """Of ``images`` test images, evenly from all, whole, and after each of ``changes``.

    Columns of the rows: accuracy, accuracy_low, accuracy_high (95 %, Wilson), images; and against the whole images, ""
    for these, drop, drop_low, drop_high, p, p_holm as in ``Accuracies.drop``, Holm over all changes.
    """
    model, data = material.model, material.data
    every = 1 + len(changes)
    joint = torch.zeros(every, every, dtype=torch.long, device=model.device)
    total = torch.zeros((), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        for batch in data.batches("test", model.device, images=images):
            shown = [batch.images, *(change(batch) for change in changes)]
            right = torch.stack([outcomes(model(each), batch.labels)[0][batch.valid] for each in shown]).double()
            joint += (right @ right.mT).long()  # whole numbers far below 2^53
            total += batch.valid.sum()
    joint, seen = ranks.total(joint).cpu(), ranks.total(total).cpu()
    right = joint.diagonal()
    low, high = wilson(right, seen)
    own = {"accuracy": right.double() / seen, "accuracy_low": low, "accuracy_high": high, "images": seen.expand(every)}
    found = Accuracies([], joint, seen)
    paired = found.drop(torch.zeros(len(changes), dtype=torch.long), torch.arange(1, every))
    for number in range(every):
        against = {name: column[number - 1].item() if number else "" for name, column in paired.items()}
        found.rows.append({**{name: column[number].item() for name, column in own.items()}, **against})
    return found


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
