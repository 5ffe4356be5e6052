from __future__ import annotations

import numpy as np
import pytest
import torch

from mhprobe.measures.cca import CCA
from mhprobe.measures.svcca import SVCCA
from oracles import cca as oracle
from related import LAYOUT, batch_of, related, rows_of


def columns(z, kind=CCA, **options):
    measure = kind(LAYOUT, **options)
    measure.update(batch_of(z))
    return measure.columns()


def test_all_correlations_are_kept_for_the_coefficient_curve():
    z = related(seed=3)
    rho, rows = columns(z)["rho"], rows_of(z)
    np.testing.assert_allclose(
        rho[0, 2].numpy(), oracle.correlations(rows[0], rows[2]), rtol=1e-7, atol=1e-8
    )
    assert rho[0, 5].isnan().all()


def test_it_is_svcca_without_the_cut_and_the_cut_matters():
    z = related(seed=3)
    torch.testing.assert_close(
        columns(z)["rho"], columns(z, SVCCA, variance=1.0)["rho"], rtol=0, atol=0, equal_nan=True
    )
    assert not torch.allclose(
        columns(z)["value"][:3, :3], columns(z, SVCCA)["value"][:3, :3], atol=0.01
    )


@pytest.mark.parametrize("images", [10, 100])
def test_null_correlations_fall_and_average_to_the_null(images):
    got = columns(related(images=images, tokens=60, seed=3), null_draws=3)
    null_rho = got["null_rho"][0, 1]
    assert (null_rho.diff() <= 0).all()
    assert float(null_rho.mean()) == pytest.approx(float(got["null"][0, 1]), abs=1e-12)


@pytest.mark.peer
def test_scikit_learn_finds_the_same_correlations():
    from sklearn.cross_decomposition import CCA as Peer

    z = related(images=40, seed=5)
    rho, rows = columns(z)["rho"], rows_of(z)
    # its iteration finds one pair of directions after the other and loses digits; leading ones are
    # safe
    x, y = Peer(n_components=3, scale=False, max_iter=20_000, tol=1e-12).fit_transform(
        rows[0], rows[1]
    )
    peer = [np.corrcoef(x[:, k], y[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(rho[0, 1, :3].numpy(), peer, atol=1e-4)
