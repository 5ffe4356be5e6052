"""Fourier images of feature maps before and after each block's attention.

After Park & Kim, 2022, arXiv 2202.06709, and Byun & Kim, Figure 6. The map is of one image, which is shown beside it,
the mean over channels; the Fourier image is ln |2-D transform|, per image and channel, averaged over both AFTER the
logarithm, with frequency 0 in the middle.

Shapes: B images, h x w patches, C channels, L blocks.
"""

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.heads import HeadSite
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded
from mhprobe.report.figures import maps as figure
from mhprobe.report.report import Result, Sample
from mhprobe.report.tables import from_rows

_FLOOR = 1e-6  # Park & Kim's


def fft_images(material: Material, images: int = 2000) -> dict[str, Result]:
    """Maps of one test image, Fourier images over ``images`` of them, evenly from all.

    Table: block, place (before or after attention), images, and the mean ln amplitude of the inner and the outer half
    of the frequencies, relative to frequency 0.
    """
    model, layout = material.model, material.layout
    sites = list({site.block: site for site in layout.sites}.values())
    sums = [torch.zeros(2, *site.token_grid, dtype=torch.float64, device=model.device) for site in sites]
    seen = torch.zeros((), dtype=torch.long, device=model.device)
    shown: tuple[int, list[Tensor]] | None = None
    for batch, heads in recorded(model, material.walk(images)(), {"stream"}):
        streams = heads.need("stream", "fft_images")
        around = [(streams[site.block].before, streams[site.block].middle) for site in sites]
        maps = [
            torch.stack([grid_of(part[batch.valid], site) for part in pair])
            for pair, site in zip(around, sites, strict=True)
        ]
        for total, pair in zip(sums, maps, strict=True):
            total += log_amplitude(pair).mean(2).sum(1)
        seen += batch.valid.sum()
        if shown is None and batch.valid.any():
            shown = int(batch.index[batch.valid][0]), [pair[:, 0].mean(1).cpu() for pair in maps]
    count = int(ranks.total(seen))
    means = [(ranks.total(total) / count).cpu() for total in sums]
    shown = ranks.from_rank_zero(lambda: shown)
    assert shown is not None
    rows = [
        {"block": site.block, "place": place, "images": count, **halves(mean[number])}
        for site, mean in zip(sites, means, strict=True)
        for number, place in enumerate(("before", "after"))
    ]
    position, feature_maps = shown
    picture = material.data.stored("test", [position]).images[0].float() / 255
    drawn = figure.fft_images([site.block for site in sites], feature_maps, means, picture)
    of = Sample(count, "test", f"maps of {Sample(1, 'test')}, spectra: {Sample(count, 'test')}")
    return {"fourier": Result(from_rows(rows), drawn, of=of)}


def grid_of(stream: Tensor, site: HeadSite) -> Tensor:
    """(B, T, C) -> (B, C, h, w) float64, without prefix tokens."""
    return stream[:, site.prefix_tokens :].double().mT.unflatten(2, site.token_grid)


def log_amplitude(maps: Tensor) -> Tensor:
    """(..., h, w) -> the same shape: ln amplitude, frequency 0 in the middle."""
    return torch.fft.fftshift((torch.fft.fft2(maps).abs() + _FLOOR).log(), dim=(-2, -1))


def halves(image: Tensor) -> dict[str, float]:
    """Of one Fourier image (h, w): mean ln amplitude of low and of high frequencies, minus that of frequency 0."""
    height, width = image.shape
    down = (torch.arange(height) - height // 2).double() / (height / 2)
    across = (torch.arange(width) - width // 2).double() / (width / 2)
    radius = torch.hypot(down[:, None], across[None])  # 1 at the highest frequency along an axis
    centre = image[height // 2, width // 2]
    low = image[(radius > 0) & (radius <= 0.5)].mean() - centre
    high = image[radius > 0.5].mean() - centre
    return {"low": low.item(), "high": high.item()}
