from __future__ import annotations

import torch

from mhprobe.measures.parts.moments import Moments


def moments_of(x, folds=1):
    moments = Moments.zeros(folds, x.shape[1])
    for fold, part in enumerate(x.tensor_split(folds)):
        moments.add(part, fold)
    return moments


def covariance_of(moments, width, without=None):
    return moments.parts(width)(without).crosses(0).transpose(0, 1).flatten(1)


def test_covariance_is_that_of_the_rows():
    x = (
        torch.randn(9_000, 200, dtype=torch.float64) + 30
    )  # more rows and channels than are taken at a time
    torch.testing.assert_close(
        covariance_of(moments_of(x), 200), torch.cov(x.mT), rtol=1e-10, atol=1e-10
    )
    torch.testing.assert_close(
        covariance_of(moments_of(x), 50), torch.cov(x.mT)[:50], rtol=1e-10, atol=1e-10
    )
    parts = moments_of(x).parts(50)(None)
    own = torch.stack([torch.cov(x[:, start : start + 50].mT) for start in range(0, 200, 50)])
    torch.testing.assert_close(
        parts.spectrum.flip(1), torch.linalg.eigvalsh(own), rtol=1e-9, atol=1e-10
    )


def test_moments_merge_by_addition_and_a_fold_is_left_out_by_subtraction():
    x = torch.randn(50, 4, dtype=torch.float64)
    merged = moments_of(x[:13])
    merged.merge(moments_of(x[13:]))
    assert int(merged.rows) == 50
    torch.testing.assert_close(covariance_of(merged, 4), covariance_of(moments_of(x), 4))
    for fold, part in enumerate((x[25:], x[:25])):
        torch.testing.assert_close(
            covariance_of(moments_of(x, folds=2), 4, fold), torch.cov(part.mT)
        )


def test_float32_sums_would_have_failed_here():
    x = torch.randn(20_000, 3) * 0.01 + 10  # a head with a large mean, as many have
    exact = torch.cov(x.double().mT)
    torch.testing.assert_close(covariance_of(moments_of(x), 3), exact, rtol=1e-6, atol=1e-10)
    single = (x.mT @ x - torch.outer(x.sum(0), x.sum(0) / len(x))) / (len(x) - 1)
    assert (single.double() - exact).abs().max() > 0.03 * exact.abs().max()
