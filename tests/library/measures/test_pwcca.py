from __future__ import annotations

import numpy as np
import pytest
import torch

from mhprobe.measures.cca import CCA
from mhprobe.measures.pwcca import PWCCA
from oracles import pwcca as oracle
from related import LAYOUT, D, batch_of, related, rows_of


def columns(z, kind=PWCCA):
    measure = kind(LAYOUT)
    measure.update(batch_of(z))
    return measure.columns()


def test_row_and_column_weigh_by_their_own_channels():
    z = related(seed=3)
    got, rows = columns(z), rows_of(z)
    assert float(got["value"][0, 1]) == pytest.approx(oracle.similarity(rows[0], rows[1]), abs=1e-9)
    assert float(got["reverse"][0, 1]) == pytest.approx(
        oracle.similarity(rows[1], rows[0]), abs=1e-9
    )
    assert abs(float(got["value"][0, 1] - got["reverse"][0, 1])) > 1e-3  # the two differ
    torch.testing.assert_close(got["reverse"], got["value"].mT, rtol=0, atol=0, equal_nan=True)


def test_shared_directions_count_by_how_much_of_the_head_they_make_up():
    generator = torch.Generator().manual_seed(0)
    z = [
        torch.randn(100, 12, s.num_heads, D, generator=generator, dtype=torch.float64)
        for s in LAYOUT.sites
    ]
    z[0][..., 1, :2] = z[0][..., 0, :2]  # heads 0 and 1 share two directions
    z[0][..., 0, :2] *= 50  # which make up nearly all of head 0, and a third of head 1
    got, plain = columns(z), columns(z, CCA)
    assert float(got["value"][0, 1]) > 0.9
    assert float(got["value"][1, 0]) == pytest.approx(float(plain["value"][0, 1]), abs=0.1)


def test_the_released_code_of_the_paper_gives_something_else():
    """google/svcca's pwcca.py, as it is written: no whitening, means added, nothing centred (see the docstring)."""
    z = related(seed=3)
    x, y = rows_of(z)[:2]
    covariance = np.cov(x, y, rowvar=False)
    roots = []
    for block in (covariance[:D, :D], covariance[D:, D:]):
        eigenvalue, vector = np.linalg.eigh(block)
        roots.append(vector / np.sqrt(eigenvalue) @ vector.T)
    u, rho, _ = np.linalg.svd(roots[0] @ covariance[:D, D:] @ roots[1])
    directions = (x - x.mean(0)) @ u + x.mean(0)
    weights = np.abs(np.linalg.qr(directions)[0].T @ x).sum(1)
    released = float((weights * rho).sum() / weights.sum())
    assert abs(released - float(columns(z)["value"][0, 1])) > 0.01
