from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.cka import CKA
from mhprobe.measures.parts.pairs import FewImages
from related import LAYOUT, batch_of, related, rows_of


def columns(z, **options):
    measure = CKA(LAYOUT, **options)
    measure.update(batch_of(z))
    return measure.columns()


def test_the_debiased_estimate_does_not_grow_when_rows_are_few():
    generator = torch.Generator().manual_seed(0)
    warnings.simplefilter("ignore", FewImages)  # tokens are independent here
    biased, debiased = [], []
    for _ in range(30):
        z = [
            torch.randn(1, 60, s.num_heads, 6, generator=generator, dtype=torch.float64)
            for s in LAYOUT.sites
        ]
        biased.append(columns(z)["value"][0, 1])
        debiased.append(columns(z, debiased=True)["value"][0, 1])
    assert torch.stack(biased).mean() > 0.07
    assert float(torch.stack(debiased).mean()) == pytest.approx(
        0, abs=4 * float(torch.stack(debiased).std()) / 30**0.5
    )


@pytest.mark.parametrize(("offset", "error"), [(10, 1e-9), (1000, 1e-3)])
def test_an_offset_costs_the_debiased_estimate_four_digits_per_digit(offset, error):
    generator = torch.Generator().manual_seed(0)
    z = [
        torch.randn(100, 12, s.num_heads, 6, generator=generator, dtype=torch.float64)
        for s in LAYOUT.sites
    ]
    z[0][..., 1, :] += z[0][..., 0, :]
    got = columns(z, debiased=True)["value"]
    moved = columns([site + offset for site in z], debiased=True)["value"]
    torch.testing.assert_close(moved, got, rtol=0, atol=error, equal_nan=True)
    assert got[0, 1] > 0.2


def test_plain_and_debiased_agree_with_many_rows():
    z = related(images=500)
    plain, debiased = columns(z), columns(z, debiased=True)
    torch.testing.assert_close(plain["value"], debiased["value"], rtol=0, atol=2e-3, equal_nan=True)


def test_the_debiased_estimate_needs_four_rows():
    measure = CKA(HeadLayout((HeadSite("a", 0, 0, 2, 1),)), debiased=True)
    measure.update(batch_of([torch.randn(1, 3, 2, 1)]))
    with pytest.raises(UserError, match="at least 4 rows, got 3"):
        measure.columns()


@pytest.mark.peer
def test_scikit_learn_centres_kernels_alike():
    from sklearn.preprocessing import KernelCenterer

    z = related()
    x, y = rows_of(z)[:2]
    k, l = (KernelCenterer().fit_transform(head @ head.T) for head in (x, y))
    peer = np.sum(k * l) / np.linalg.norm(k) / np.linalg.norm(l)
    assert float(columns(z)["value"][0, 1]) == pytest.approx(peer, abs=1e-10)
