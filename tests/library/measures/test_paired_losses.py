"""The streamed bootstrap against the one that has all images at once."""

from __future__ import annotations

import pytest
import torch

from mhprobe.heads import Ablation, HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.parts.hashing import DONORS, image_numbers, mixed
from mhprobe.stats.intervals import bootstrap
from mhprobe.stats.significance import Z95

LAYOUT = HeadLayout((HeadSite("a", 0, 0, 2, 3),))
IMAGES = 300


def losses() -> torch.Tensor:
    """(2, N) margins: few images lose much, so the mean's law is skewed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, IMAGES, generator=generator, dtype=torch.float64).mul(1.5).exp()


def columns(order: torch.Tensor, size: int) -> dict[str, torch.Tensor]:
    measure, pixels = (
        AblationDelta(LAYOUT),
        torch.randn(IMAGES, 3, 2, 2, generator=torch.Generator().manual_seed(1)),
    )
    assert measure.needs == {Ablation(((0,), (1,)))}
    for part in order.split(size):
        margin = losses()[:, part]
        zero = torch.zeros_like(margin[0])
        measure.update(
            HeadBatch(
                z=(),
                logits=torch.stack([zero + 30, zero], -1),
                ablated={measure.ablation: torch.stack([-margin - 30, margin * 0], -1)},
                labels=torch.zeros(len(part), dtype=torch.long),
                valid=torch.ones(len(part), dtype=torch.bool),
                images=pixels[part],
            )
        )
    return measure.columns()


def test_its_interval_is_that_of_resampled_images_and_not_the_normal_one():
    got, rise = columns(torch.arange(IMAGES), 64), losses() + 30
    low, high = bootstrap(rise, resamples=4000)
    spread = rise.std(1) / IMAGES**0.5
    # the 2.5 % quantile of 1,000 resamples has a standard error of 0.085 spreads; Poisson's law
    # adds next to nothing
    assert ((got["low"] - low).abs() < 4 * 0.1 * spread).all() and (
        (got["high"] - high).abs() < 4 * 0.1 * spread
    ).all()
    above, below = got["high"] - got["value"], got["value"] - got["low"]
    assert (above > 1.1 * below).all()  # the normal interval has equal arms
    assert got["standard_error"].mul(Z95).tolist() == pytest.approx(
        ((above + below) / 2).tolist(), rel=0.15
    )


def test_it_depends_on_the_images_alone():
    got = columns(torch.arange(IMAGES), 300)
    other = columns(torch.randperm(IMAGES, generator=torch.Generator().manual_seed(2)), 41)
    for end in ("low", "high"):
        torch.testing.assert_close(other[end], got[end], rtol=1e-10, atol=0)


def test_where_images_share_donors_errors_are_over_donors():
    """The error was that of independent images: on 600 of them a quarter of the truth, and less on more."""
    pixels = torch.randn(600, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    donor_N = mixed(image_numbers(pixels)) % DONORS
    inside, ratio, sets = {"resample": 0, "mean": 0}, 0.0, 100
    for seed in range(sets):
        generator = torch.Generator().manual_seed(seed)
        shift_D = torch.randn(
            2, DONORS, generator=generator, dtype=torch.float64
        )  # of mean 0: so is the true value
        rise = shift_D[:, donor_N] + torch.randn(2, 600, generator=generator, dtype=torch.float64)
        for fill in inside:
            measure = AblationDelta(LAYOUT, fill=fill)
            logits = torch.stack(
                [torch.full_like(rise, 30.0), torch.zeros_like(rise)], -1
            )  # class 1 loses 30 nats
            logits[..., 1] -= rise
            whole = torch.stack([torch.full((600,), 30.0), torch.zeros(600)], -1).double()
            ones = torch.ones(600, dtype=torch.long)
            batch = {
                "logits": whole,
                "ablated": {measure.ablation: logits},
                "labels": ones,
                "images": pixels,
            }
            measure.update(HeadBatch(z=(), valid=ones > 0, **batch))
            got = measure.columns()
            inside[fill] += int(((got["low"] <= 0) & (got["high"] >= 0)).sum())
        ratio += float(measure.columns()["standard_error"].mean()) / sets
    assert (
        inside["resample"] / (2 * sets) > 0.86
    )  # 32 donors and a percentile interval: a little less than 95 %
    assert inside["mean"] / (2 * sets) < 0.5  # the control
    assert ratio == pytest.approx((2 / 600) ** 0.5, rel=0.1)
