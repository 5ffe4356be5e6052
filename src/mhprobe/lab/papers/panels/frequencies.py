"""Frequencies that a network needs in its images, and those of its feature maps before and after attention.

After Park & Kim, 2022, arXiv 2202.06709, section 2, and Byun & Kim, Figure 6. Frequencies from 0 to
pi are cut into equal rings, of which one at a time is changed in all images.

Shapes: B images, C versions of an image (whole, and one for each change), h x w patches.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.data.batch import Batch
from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.heads.batch import Stream
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.measuring import recorded
from mhprobe.report.figures import frequencies, maps
from mhprobe.report.result import Result, Sample
from mhprobe.report.tables import from_rows
from mhprobe.stats.significance import holm, mcnemar, paired_difference, significant, wilson

WHOLE = {"from": "", "to": ""}
DAMAGES = ("phase", "amplitude")
_FLOOR = 1e-6  # of an amplitude; Park & Kim's


class Accuracies(NamedTuple):
    """Accuracy on versions of the same images.

    joint: (C, C) number of images that are right in both of two.
    """

    rows: list[dict[str, Any]]
    joint: Tensor
    images: Tensor

    def drop(self, before: Tensor, after: Tensor) -> dict[str, Tensor]:
        """Accuracy before - after by places in ``rows``, with 95 % (Newcombe), p (exact McNemar) and p_holm."""
        both = self.joint[before, after]
        lost = self.joint.diagonal()[before] - both
        won = self.joint.diagonal()[after] - both
        low, high = paired_difference(both, lost, won, self.images)
        p = mcnemar(lost, won)
        drop = (lost - won).double() / self.images
        return {"drop": drop, "drop_low": low, "drop_high": high, "p": p, "p_holm": holm(p)}


def accuracies(
    material: Material,
    ways: Sequence[Mapping[str, Any]],
    change: Callable[[Batch, int], Tensor],
    images: int,
) -> Accuracies:
    """Measure accuracy on ``images`` test images, evenly from all, as they are and after each change.

    ways: columns that name each version, the whole images first. change: returns a batch's images
    in a version.
    Further columns: accuracy, accuracy_low, accuracy_high (95 %, Wilson), images; and the columns
    of ``Accuracies.drop`` against the whole images, "" for these.
    """
    changes = torch.arange(1, len(ways))
    joint = torch.zeros(len(ways), len(ways), dtype=torch.long, device=material.model.device)
    total = joint.new_zeros(())
    with torch.inference_mode():
        for batch in material.walk(images)():
            inputs = [batch.images, *(change(batch, number) for number in changes.tolist())]
            right = torch.stack(
                [
                    outcomes(material.model(version), batch.labels)[0][batch.valid]
                    for version in inputs
                ]
            )
            joint += (right.double() @ right.double().mT).long()  # whole numbers far below 2^53
            total += batch.valid.sum()
    joint = ranks.total(joint).cpu()
    seen = ranks.total(total).cpu()
    right = joint.diagonal()
    low, high = wilson(right, seen)
    share = right.double() / seen
    count = seen.expand_as(low)
    of_way = {"accuracy": share, "accuracy_low": low, "accuracy_high": high, "images": count}
    against = Accuracies([], joint, seen).drop(torch.zeros_like(changes), changes)
    columns: dict[str, list[Any]] = {name: column.tolist() for name, column in of_way.items()}
    columns |= {name: ["", *column.tolist()] for name, column in against.items()}
    values = zip(*columns.values(), strict=True)
    rows = [
        {**way, **dict(zip(columns, row, strict=True))}
        for way, row in zip(ways, values, strict=True)
    ]
    return Accuracies(rows, joint, seen)


def band_noise(
    material: Material, rings: int = 6, strength: float = 0.5, images: int = 1000
) -> dict[str, Result]:
    """Accuracy with Gaussian noise in each of ``rings`` rings, of the same size in each, and without.

    strength: standard deviation of the noise, in units of the normalised image. images: test
    images, at most.
    Table: from, to (the ring's ends, in units of pi), and the columns of ``accuracies``.
    """

    def change(batch: Batch, number: int) -> Tensor:
        return batch.images + strength * ring_noise(
            batch.images, batch.index, number - 1, rings, material.seed
        )

    rows = accuracies(
        material, [WHOLE, *(ends(ring, rings) for ring in range(rings))], change, images
    ).rows
    result = Result(
        from_rows(rows), frequencies.noise(rows, strength, material.chance), of=material.of(images)
    )
    return {"noise": result.saying("accuracy under noise", "the network needs the ring less")}


def phase_and_amplitude(
    material: Material, rings: int = 6, images: int = 1000
) -> dict[str, Result]:
    """Accuracy without the phases, or without the amplitudes, of each of ``rings`` rings.

    "phase" replaces the phases of a ring by those of noise, "amplitude" its amplitudes, at equal
    energy in the ring. Frequency 0 stays.

    images: test images, at most. Table: damage, from, to (the ring's ends, in units of pi), and the
    columns of ``accuracies``. Table ``difference``: per ring the ``Accuracies.drop`` of the phases
    beyond the amplitudes.
    """
    ways = [(damage, ring) for damage in DAMAGES for ring in range(rings)]

    def change(batch: Batch, number: int) -> Tensor:
        return without(batch.images, batch.index, *ways[number - 1], rings, material.seed)

    named = [
        {"damage": "none", **WHOLE},
        *({"damage": damage, **ends(ring, rings)} for damage, ring in ways),
    ]
    damaged = accuracies(material, named, change, images)
    phase = torch.arange(1, 1 + rings)
    beyond = damaged.drop(before=phase + rings, after=phase)
    difference = [
        {**ends(ring, rings), **{name: column[ring].item() for name, column in beyond.items()}}
        for ring in range(rings)
    ]
    panel = frequencies.phase(
        damaged.rows, [significant(row["p_holm"]) for row in difference], material.chance
    )
    of_phase = Result(from_rows(damaged.rows), panel, of=material.of(images))
    beyond_phase = Result(from_rows(difference)).saying(
        "accuracy lost beyond amplitudes", "phases matter more"
    )
    return {
        "phase": of_phase.saying("accuracy", "the network needs it less"),
        "difference": beyond_phase,
    }


def ring_noise(images: Tensor, index: Tensor, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) noise in the ring, of standard deviation 1 in every image; index: (B,) its seed."""
    wave = torch.fft.fft2(noise_in_ring(images, index, ring, seed))
    noise = torch.fft.ifft2(wave * inside(ring, rings, *images.shape[-2:])).real
    noise = noise / noise.flatten(1).std(1, correction=0).clamp(min=1e-12)[:, None, None, None]
    return noise.to(images)


def without(images: Tensor, index: Tensor, damage: str, ring: int, rings: int, seed: int) -> Tensor:
    """(B, 3, height, width) images without the phases or the amplitudes of a ring.

    index: as in ``ring_noise``.
    """
    wave, noise = (
        torch.fft.fft2(pixels)
        for pixels in (images.double().cpu(), noise_in_ring(images, index, ring, seed))
    )
    here = inside(ring, rings, *images.shape[-2:])
    amplitude, phase = (
        (wave.abs(), noise.angle()) if damage == "phase" else (noise.abs(), wave.angle())
    )
    energy, drawn_energy = (
        (part.abs() * here).square().sum((-2, -1), keepdim=True) for part in (wave, amplitude)
    )
    scaled = amplitude * (energy / drawn_energy.clamp(min=1e-12)).sqrt()
    return torch.fft.ifft2(torch.where(here, torch.polar(scaled, phase), wave)).real.to(images)


def ends(ring: int, rings: int) -> dict[str, Any]:
    """Return both ends of a ring of frequencies, in units of pi."""
    return {"from": ring / rings, "to": (ring + 1) / rings}


def inside(ring: int, rings: int, height: int, width: int) -> Tensor:
    """(height, width) bool, True for frequencies of ``torch.fft.fft2`` in the ring; frequency 0 is in none."""
    down = torch.fft.fftfreq(height).double() * 2
    across = torch.fft.fftfreq(width).double() * 2
    radius = torch.hypot(down[:, None], across[None])  # in units of pi
    return (radius > ring / rings) & (radius <= (ring + 1) / rings)


def noise_in_ring(images: Tensor, index: Tensor, ring: int, seed: int) -> Tensor:
    """Gaussian noise of the images' shape, float64, on the CPU; the same for an image in every batch."""
    seeds = [(seed * 1_000_003 + position) * 101 + ring for position in index.tolist()]
    random = [torch.Generator().manual_seed(of_image) for of_image in seeds]
    return torch.stack(
        [torch.randn(images.shape[1:], generator=g, dtype=torch.float64) for g in random]
    )


def fft_images(material: Material, images: int = 2000) -> dict[str, Result]:
    """Draw feature maps of one test image before and after each block's attention, and Fourier images of ``images``.

    The map is the mean over channels. The Fourier image is the mean of ln |2-D transform| over
    images and channels.
    Table: block, place (before or after attention), images, and the mean ln amplitude of the low
    and the high half of the frequencies, relative to frequency 0.
    """
    sites = _one_of_each_block(material.layout)
    sums, shown = _spectra_and_maps(material, sites, images)
    count = material.of(images).images
    means = [(ranks.total(total) / count).cpu() for total in sums]
    rows = [
        {"block": site.block, "place": place, "images": count, **low_and_high(spectrum)}
        for site, mean in zip(sites, means, strict=True)
        for place, spectrum in zip(("before", "after"), mean, strict=True)
    ]
    shown = ranks.from_rank_zero(lambda: shown)
    assert shown is not None
    picture = material.data.stored("test", [shown[0]]).images[0].float() / 255
    figure_of_maps = maps.fft_images([site.block for site in sites], shown[1], means, picture)
    sample = Sample(count, "test", f"maps of {Sample(1, 'test')}, spectra: {Sample(count, 'test')}")
    meaning = "mean ln amplitude, less that of frequency 0", "the map has more of these frequencies"
    return {"fourier": Result(from_rows(rows), figure_of_maps, of=sample).saying(*meaning)}


def grids_of_stream(stream: Tensor, site: HeadSite) -> Tensor:
    """(B, channels, h, w) float64 of a stream (B, T, channels), without prefix tokens."""
    return stream[:, site.prefix_tokens :].double().mT.unflatten(2, site.token_grid)


def log_amplitude(grids: Tensor) -> Tensor:
    """(..., h, w) ln amplitude, with frequency 0 in the middle."""
    return torch.fft.fftshift((torch.fft.fft2(grids).abs() + _FLOOR).log(), dim=(-2, -1))


def low_and_high(image: Tensor) -> dict[str, float]:
    """Mean ln amplitude of low and of high frequencies of a Fourier image (h, w), less that of frequency 0."""
    height, width = image.shape
    down, across = (
        (torch.arange(side) - side // 2).double() / (side / 2) for side in (height, width)
    )
    radius = torch.hypot(down[:, None], across[None])  # 1 at the highest frequency along an axis
    centre = image[height // 2, width // 2]
    low, high = image[(radius > 0) & (radius <= 0.5)], image[radius > 0.5]
    return {"low_half": (low.mean() - centre).item(), "high_half": (high.mean() - centre).item()}


def _one_of_each_block(layout: HeadLayout) -> list[HeadSite]:
    """Return a site per block, which says how its tokens lie."""
    return list({site.block: site for site in layout.sites}.values())


def _around_attention(stream: Stream, site: HeadSite, valid: Tensor) -> Tensor:
    """Return the maps of the stream before a block's attention and after it, one on the other, of valid images."""
    parts = (stream.before, stream.middle)
    return torch.stack([grids_of_stream(part[valid], site) for part in parts])


def _spectra_and_maps(
    material: Material, sites: Sequence[HeadSite], images: int
) -> tuple[list[Tensor], tuple[int, list[Tensor]] | None]:
    """Return what is summed over the images and channels of this process, and maps of its first image.

    The sums are of ln amplitudes, (2, h, w) before and after the attention of each block. The maps,
    (2, h, w), are means over channels, beside the image's index; None without an image.
    """
    sums = [
        torch.zeros(2, *site.token_grid, dtype=torch.float64, device=material.model.device)
        for site in sites
    ]
    shown: tuple[int, list[Tensor]] | None = None
    for batch, heads in recorded(material.model, material.walk(images)(), {"stream"}):
        streams = heads.need("stream", "fft_images")
        pairs = [_around_attention(streams[site.block], site, batch.valid) for site in sites]
        for total, pair in zip(sums, pairs, strict=True):
            total += log_amplitude(pair).mean(2).sum(1)
        if shown is None and batch.valid.any():
            shown = int(batch.index[batch.valid][0]), [pair[:, 0].mean(1).cpu() for pair in pairs]
    return sums, shown
