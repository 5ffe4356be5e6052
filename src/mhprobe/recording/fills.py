"""Fills for heads that are off, found on the images that choose.

zero: nothing, as in a removal. mean: the head's mean output over images and positions.
mean_per_position: its mean over images, by position. resample: its output on one of 32 other
images, which its pixels choose (Chan et al., 2022, causal scrubbing). optimal: the constant of
least loss while this head alone is off (Li & Janson, 2024, arXiv 2409.09951): by gradient descent
from the mean on up to 256 images; each head keeps its best step, so no head costs more than its
mean. Of an MLP every 16th neuron is off together and keeps the best step of its sixteenth.

Outputs are those before the gates, of the whole model. Every rank finds the same, whatever the
batches.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.backbones import puts_out_features
from mhprobe.data.batch import Walk
from mhprobe.errors import UserError, one_of
from mhprobe.gates import HeadGates, gates_of
from mhprobe.gates.fill import Fill
from mhprobe.heads import FillName, HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.parts.hashing import DONORS, Pool, donor_of, image_numbers, mixed
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.checks import check_labels
from mhprobe.recording.outputs import logits_of, slopes_along
from mhprobe.recording.record import in_raster_order
from mhprobe.recording.state import inspecting, usable
from mhprobe.recording.taps import Taps

FITTED = 256  # images that constants are fitted on
STEPS, RATE = 16, 0.3  # of the fit; the rate is in deviations of a head's output, and falls to 0
ABREAST = 256  # rows of a forward pass of the fit
PARTS = 16  # sets of neurons of an MLP that are off together in the fit


def find_fill(model: nn.Module, name: FillName, batches: Walk) -> Fill | None:
    """Find the fill of each head of ``model``; None for zero. A collective.

    batches: starts a walk over the images that choose. Raises UserError as ``check_fill``, for
    resampling from a single image, and for a fit without labels.
    """
    check_fill(model, name)
    if name == "zero":
        return None
    with torch.inference_mode(False):  # it is used outside too
        return FOUND[name](model, batches)


def check_fill(model: nn.Module, name: FillName, where: str = "fill") -> None:
    """Raise UserError for an unknown fill, and for a fit to the loss of a network that gives features."""
    one_of(where, "fill", name, FillName)
    if name == "optimal" and puts_out_features(
        model
    ):  # unlabelled data has zeros for labels: it would fit to class 0
        raise UserError(
            f"{where}: optimal is fitted to the loss of logits, and the network gives features; "
            "expected mean or zero."
        )


def mean(model: nn.Module, batches: Walk) -> Fill:
    """Fill with each head's mean over images and positions, without padding."""
    layout = gates_of(model).layout
    return _even(layout, _moments(model, layout, batches)[0])


def mean_per_position(model: nn.Module, batches: Walk) -> Fill:
    """Fill with each head's mean over images, by window and token."""
    moments, image = _moments(model, gates_of(model).layout, batches)
    return Fill(tuple(mean[None].float() for mean, _ in moments), image=image)


def resample(model: nn.Module, batches: Walk) -> Fill:
    """Fill with each head's output on one of a few other images."""
    images, numbers, _ = _drawn(batches, DONORS)
    if len(images) < 2:
        raise UserError(
            f"fill=resample: takes another image's output, got {len(images)} images to take it "
            "from."
        )
    device = next(model.parameters()).device
    outputs = _outputs(model, gates_of(model).layout, images.to(device))
    return OutputsOfDonors(tuple(outputs), numbers.to(device), image=tuple(images.shape[1:]))


def optimal(model: nn.Module, batches: Walk) -> Fill:
    """Fill with a constant per head, fitted while that head alone is off."""
    gates = gates_of(model)
    layout, (moments, _) = gates.layout, _moments(model, gates.layout, batches)
    images, _, labels = _drawn(batches, FITTED)
    if labels is None:
        raise UserError(
            "fill=optimal: it minimises the loss, so it needs labels, got none. Use fill=mean."
        )
    mine = slice(ranks.rank(), None, ranks.size())
    best = [site.clone() for site in _even(layout, moments).sites]
    pairs = zip(layout.sites, moments, strict=True)
    means = (
        (in_raster_order(site, part, 1).mean(1).flatten() for part in both) for site, both in pairs
    )
    # per site the deviation of its heads' outputs, over images, positions and channels
    spread = [
        float((square_C - mean_C.square()).clamp(min=0).mean().sqrt()) for mean_C, square_C in means
    ]
    with inspecting(model, gradients=True):
        constants = [site.clone().requires_grad_() for site in best]
        descent = torch.optim.Adam(
            [{"params": [c], "scale": s} for c, s in zip(constants, spread, strict=True)], lr=1
        )
        set_A = _switched_together(layout).to(best[0].device)
        least_G = torch.full(
            (int(set_A.max()) + 1,), math.inf, dtype=torch.float64, device=best[0].device
        )
        for step in range(STEPS):
            loss_G = _descend(model, gates, images[mine], labels[mine], constants, set_A)
            better_G = loss_G < least_G
            least_G = torch.where(better_G, loss_G, least_G)
            for number, site in enumerate(layout.sites):
                better_C = better_G[set_A][layout.span(number)].repeat_interleave(site.head_dim)
                best[number] = torch.where(better_C, constants[number].detach(), best[number])
            for group in descent.param_groups:
                group["lr"] = RATE * (1 - step / STEPS) * group["scale"]
            descent.step()
    return Fill(tuple(best))


FOUND: dict[str, Callable[[nn.Module, Walk], Fill]] = {
    find.__name__: find for find in (mean, mean_per_position, resample, optimal)
}


@dataclass(frozen=True, eq=False)
class OutputsOfDonors(Fill):
    """Outputs on S donors. numbers: (S,) int64 of their images."""

    numbers: Tensor

    def for_images(self, images: Tensor) -> Fill:
        """Return the output on each image's donor, which its pixels choose; never on itself."""
        super().for_images(images)
        number_B = image_numbers(images)
        place_B = donor_of(number_B) % len(self.numbers)
        itself_B = self.numbers[place_B] == number_B
        place_B = (place_B + itself_B.long()) % len(self.numbers)
        return Fill(tuple(site[place_B] for site in self.sites))


def beyond_fill(heads: HeadBatch, fill: Fill, layout: HeadLayout) -> HeadBatch:
    """Batch with z - fill for z, so that slopes are those of a mask.

    fill: for the images of the batch.
    """
    parts = zip(layout.sites, fill.sites, heads.z, strict=True)
    return dataclasses.replace(
        heads, z=tuple(z - _in_order(site, rows).to(z) for site, rows, z in parts)
    )


def _in_order(site: HeadSite, rows: Tensor) -> Tensor:
    """(S, W, T, H * D) -> (S, T, H, D) in raster order."""
    one = rows.shape[1:-1].numel() == 1
    return (
        rows.view(-1, 1, site.num_heads, site.head_dim)
        if one
        else in_raster_order(site, rows, len(rows))
    )


def _outputs(model: nn.Module, layout: HeadLayout, images: Tensor) -> list[Tensor]:
    """Per site (B, W, T, H * D), before the gates."""
    with inspecting(model, gradients=False), Taps(model, layout, ()) as taps:
        model(usable(images))
    return [rows.unflatten(0, (len(images), -1)) for rows in taps.heads]


def _moments(
    model: nn.Module, layout: HeadLayout, batches: Walk
) -> tuple[list[Tensor], tuple[int, ...]]:
    """Per site (2, W, T, H * D) float64: mean over images, and mean of squares; and the shape of an image."""
    sums, image = list[Tensor](), tuple[int, ...]()
    images = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
    for batch in batches():
        outputs = [site[batch.valid].double() for site in _outputs(model, layout, batch.images)]
        batch_sums = [torch.stack([site.sum(0), site.square().sum(0)]) for site in outputs]
        sums = [a + b for a, b in zip(sums, batch_sums, strict=True)] if sums else batch_sums
        images, image = images + batch.valid.sum(), tuple(batch.images.shape[1:])
    if not bool(ranks.total(images)):
        raise UserError("fill: expected at least one image to compute it from, got none.")
    return [ranks.total(part) / images for part in sums], image


def _even(layout: HeadLayout, moments: list[Tensor]) -> Fill:
    pairs = zip(layout.sites, moments, strict=True)
    return Fill(
        tuple(
            in_raster_order(site, mean, 1).mean(1).view(1, 1, 1, -1).float()
            for site, (mean, _) in pairs
        )
    )


def _drawn(batches: Walk, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Draw ``count`` images of all ranks' together, by their pixels alone. A collective.

    (n, ...) images, (n,) their numbers (see ``image_numbers``) and (n,) labels, None without any.
    """
    pool, labelled = Pool(count), True
    for batch in batches():
        images, labelled = batch.images[batch.valid], labelled and batch.labels is not None
        numbers = image_numbers(images)
        pool.add(
            mixed(numbers ^ 1),
            [images, numbers, batch.labels[batch.valid] if labelled else numbers],
        )
    pool.gather()
    images, numbers, labels = pool.held[1:] or [torch.empty(0, dtype=torch.long)] * 3
    return images, numbers, labels if all(ranks.gather(labelled)) else None


def _switched_together(layout: HeadLayout) -> Tensor:
    """(A,) int64, the set of each unit: a head alone, of an MLP's neurons every 16th."""
    sets, count = [], 0
    for site in layout.sites:
        size = min(site.num_heads, PARTS) if site.kind == "neuron" else site.num_heads
        sets.append(count + torch.arange(site.num_heads) % size)
        count += size
    return torch.cat(sets)


def _descend(
    model: nn.Module,
    gates: HeadGates,
    images_n: Tensor,
    labels_n: Tensor,
    constants: list[Tensor],
    set_A: Tensor,
) -> Tensor:
    """(G,) mean loss with one set of units at its constants, and the constants' slopes along it; the same on all ranks.

    images, labels: of this rank.
    """
    present_A, device = gates.effective().detach(), gates.values.device
    sets = torch.arange(int(set_A.max()) + 1, device=device)
    loss_G = torch.zeros(len(sets), dtype=torch.float64, device=device)
    slopes = [torch.zeros_like(constant) for constant in constants]
    size = 16
    for start in range(0, len(images_n), size):
        images, labels = (part[start : start + size].to(device) for part in (images_n, labels_n))
        for off in sets.split(max(1, ABREAST // len(images))):
            values = present_A.repeat(len(off), 1).masked_fill(set_A == off[:, None], 0)
            with gates.side_by_side(values, fill=Fill(tuple(constants))):
                logits = logits_of(model(torch.cat([usable(images)] * len(off))), model)
            check_labels(labels, logits)
            _, losses = outcomes(logits.unflatten(0, (len(off), -1)), labels)
            for slope, gradient in zip(slopes, slopes_along(losses.sum(), constants), strict=True):
                slope += gradient
            loss_G[off] += losses.detach().sum(1)
    images_seen = ranks.total(
        torch.tensor(float(len(images_n)), dtype=torch.float64, device=device)
    )
    for constant, slope in zip(constants, slopes, strict=True):
        constant.grad = ranks.total(slope) / images_seen.to(slope)
    return ranks.total(loss_G) / images_seen
