from __future__ import annotations

import numpy as np
import pytest
import torch

from mhprobe.measures.cka import CKA
from mhprobe.measures.procrustes import Procrustes
from related import LAYOUT, batch_of, related, rows_of


def columns(z, kind=Procrustes, **options):
    measure = kind(LAYOUT, **options)
    measure.update(batch_of(z))
    return measure.columns()


def test_distance_is_what_no_rotation_can_remove():
    got = columns(related(), pairs="all")
    torch.testing.assert_close(got["distance"].square(), 2 - 2 * got["value"])
    assert (got["distance"].diagonal() == 0).all()
    d = got["distance"]
    assert (
        d[:, None, :] <= d[:, :, None] + d[None] + 1e-12
    ).all()  # a metric: a to c is no farther than through b


@pytest.mark.peer
def test_scipy_finds_the_same_rotation():
    from scipy.linalg import orthogonal_procrustes
    from scipy.spatial import procrustes

    z = related()
    x, y = (head - head.mean(0) for head in rows_of(z)[:2])
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    got = columns(z)
    assert float(got["value"][0, 1]) == pytest.approx(orthogonal_procrustes(x, y)[1], abs=1e-10)
    # scipy.spatial.procrustes scales the second head for the best fit, so its disparity is 1 - s^2
    # and not 2 - 2 s
    assert 1 - float(got["value"][0, 1]) ** 2 == pytest.approx(procrustes(x, y)[2], abs=1e-10)


def test_small_directions_count_for_more_than_in_cka():
    generator = torch.Generator().manual_seed(0)
    z = [
        torch.randn(100, 12, s.num_heads, 6, generator=generator, dtype=torch.float64)
        for s in LAYOUT.sites
    ]
    z[0][:, :, 1] = z[0][:, :, 0]
    z[0][..., :1] *= 10
    z[0][..., 1, :1] = z[0][
        ..., 2, :1
    ]  # the large direction is not shared, the five small ones are
    assert columns(z)["value"][0, 1] > 2 * columns(z, CKA)["value"][0, 1]


def test_few_draws_of_the_null_suffice():
    z = related()
    few, many = (columns(z, null_draws=draws)["null"][0, 1] for draws in (5, 300))
    assert float(few) == pytest.approx(float(many), rel=0.1)
