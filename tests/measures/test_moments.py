from __future__ import annotations

import torch

from mhprobe.measures.parts.moments import SecondMoments


def moments_of(x):
    moments = SecondMoments.zeros(x.shape[1])
    moments.add(x)
    return moments


def test_covariance_is_that_of_the_rows():
    x = torch.randn(9_000, 200, dtype=torch.float64) + 30  # more rows and channels than are taken at a time
    torch.testing.assert_close(moments_of(x).covariance, torch.cov(x.mT), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moments_of(x).mean_square, x.square().mean(0))


def test_parts_merge_by_addition():
    x = torch.randn(50, 4, dtype=torch.float64)
    merged = moments_of(x[:13])
    merged.merge(SecondMoments.of(x[13:]))
    assert int(merged.rows) == 50
    torch.testing.assert_close(merged.covariance, moments_of(x).covariance)


def test_float32_sums_would_have_failed_here():
    x = torch.randn(20_000, 3) * 0.01 + 10  # a head with a large mean, as many have
    exact = torch.cov(x.double().mT)
    torch.testing.assert_close(moments_of(x).covariance, exact, rtol=1e-6, atol=1e-10)
    single = (x.mT @ x - torch.outer(x.sum(0), x.sum(0) / len(x))) / (len(x) - 1)
    assert (single.double() - exact).abs().max() > 0.03 * exact.abs().max()
