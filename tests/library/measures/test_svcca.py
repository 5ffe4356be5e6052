from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.parts.pairs import DeadHead, DuplicateHead, FewImages
from mhprobe.measures.svcca import SVCCA
from oracles import svcca as oracle
from related import LAYOUT, D, batch_of, related, rows_of

EXACT = {"rtol": 1e-9, "atol": 1e-10}


def columns(z, layout=LAYOUT, **options):
    measure = SVCCA(layout, **options)
    measure.update(batch_of(z))
    return measure.columns()


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ("layer", [(0, 1, 2), (3, 4), (5, 6)]),
        ("stage", [(0, 1, 2, 3, 4), (5, 6)]),
        ("all", [tuple(range(7))]),
    ],
)
@pytest.mark.parametrize("variance", [0.6, 0.99, 1.0])
def test_every_pair_in_scope_matches_the_pairwise_oracle(pairs, groups, variance):
    z = related()
    got = columns(z, pairs=pairs, variance=variance)
    rows = rows_of(z)
    inside = {pair for group in groups for pair in itertools.product(group, group)}
    for a, b in itertools.product(range(7), range(7)):
        if (a, b) in inside:
            expected = oracle.correlations(rows[a], rows[b], variance)
            rho = got["rho"][a, b]
            np.testing.assert_allclose(rho[: len(expected)].numpy(), expected, rtol=1e-7, atol=1e-8)
            assert rho[len(expected) :].isnan().all()
            assert float(got["value"][a, b]) == pytest.approx(expected.mean(), abs=1e-8)
        else:
            assert got["value"][a, b].isnan()
            assert got["null"][a, b].isnan()
            assert got["rho"][a, b].isnan().all()
    assert torch.equal(got["dims"], torch.tensor([oracle.keep(x, variance).shape[1] for x in rows]))
    assert (got["rows"] == 120).all()
    off = got["value"][~torch.eye(7, dtype=torch.bool)]
    assert off[off.isfinite()].std() > 0.01  # pairs differ


def test_kept_dims_differ_between_heads_and_follow_the_variance_not_its_root():
    dims = columns(related(), variance=0.9)["dims"]
    assert len(set(dims.tolist())) > 1
    assert (dims <= columns(related())["dims"]).all()


def test_value_is_symmetric_with_one_on_the_diagonal():
    value = columns(related(), pairs="all")["value"]
    assert torch.equal(value, value.mT)
    assert (value.diagonal() == 1).all()
    assert ((value >= 0) & (value <= 1)).all()


def test_heads_that_are_linear_maps_of_each_other_are_the_same():
    z = related()
    mix = torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z[0][:, :, 1] = z[0][:, :, 0] @ mix - 7
    # all directions kept: which of them pass the 99 % depends on the map
    with pytest.warns(DuplicateHead, match="a head 0 and a head 1"):
        value = columns(z, variance=1.0)["value"]
    torch.testing.assert_close(value[0, 1], torch.ones((), dtype=torch.float64), **EXACT)
    assert value[0, 2] < 0.95


def test_scale_and_offset_of_a_head_do_not_matter():
    z = related()
    moved = [site * 1e-3 + 5 for site in z]
    # offset 5 over a spread of 1e-3 costs 7 of float64's 16 digits
    torch.testing.assert_close(
        columns(moved)["rho"], columns(z)["rho"], rtol=1e-6, atol=1e-6, equal_nan=True
    )


def test_unrelated_heads_reach_the_null_level_and_related_ones_exceed_it():
    generator = torch.Generator().manual_seed(2)
    z = [
        torch.randn(10, 12, s.num_heads, D, generator=generator, dtype=torch.float64)
        for s in LAYOUT.sites
    ]
    off = ~torch.eye(7, dtype=torch.bool)
    got = columns(z, pairs="all")
    # means over the 21 pairs; one pair's mean correlation spreads by about 0.03
    assert float((got["value"] - got["null"])[off].mean()) == pytest.approx(
        0, abs=4 * 0.03 * (2 / 21) ** 0.5
    )
    got = columns(related(), pairs="all")
    assert (got["value"] - got["null"])[off].mean() > 0.1


def test_a_dead_head_is_similar_to_nothing_and_named():
    z = related()
    z[0][:, :, 1] = 0.1 + 0.2  # constant, and not exactly representable
    z[1][:, :, 0] = 0
    with pytest.warns(DeadHead, match="a head 1, b head 0"):
        got = columns(z, pairs="all")
    for dead in (1, 3):
        assert (got["value"][dead] == 0).all()
        assert (got["null"][dead] == 0).all()
        assert got["dims"][dead] == 0
    alive = got["value"][0, [2, 4, 5, 6]]
    assert (alive > 0).all()
    assert got["value"].isfinite().all()


def test_few_images_warn_and_too_few_rows_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns(related(images=D, tokens=2))
    with pytest.warns(FewImages, match=f"only {D - 1} images for {D} channels"):
        columns(related(images=D - 1, tokens=1000))
    with pytest.warns(FewImages):
        assert columns(related(images=1, tokens=D), pairs="all")["value"].isfinite().all()
    with pytest.raises(UserError, match=rf"a has n = {D - 1} rows .* d = {D} .*more images"):
        columns(related(images=1, tokens=D - 1))


def test_float32_features_are_summed_in_float64():
    z = [site.float() + 100 for site in related(images=40)]
    exact = columns([site.double() for site in z])
    torch.testing.assert_close(columns(z)["value"], exact["value"], equal_nan=True, **EXACT)


def test_sites_with_other_token_counts_cannot_share_a_group():
    swin = HeadLayout(
        (
            HeadSite("stem.attn", 0, 0, 3, D, grid=(8, 8)),
            HeadSite("deep.attn", 1, 1, 6, D, grid=(4, 4)),
        )
    )
    with pytest.raises(
        UserError, match=r"pairs=all compares stem\.attn \(64 tokens.* with deep\.attn \(16 tokens"
    ):
        SVCCA(swin, pairs="all")
    SVCCA(swin, pairs="stage")
    # without a grid only the data can tell
    measure = SVCCA(LAYOUT, pairs="all")
    z = related()
    z[2] = z[2][:, :5]
    with pytest.raises(UserError, match=r"a \(12 tokens.* with c \(5 tokens"):
        measure.update(batch_of(z))


def test_rows_are_those_of_the_heads_group():
    z = related()
    z[2] = torch.cat([z[2], z[2] + torch.rand_like(z[2])], 1)
    assert columns(z)["rows"].tolist() == [120] * 5 + [240] * 2


def test_wrong_options_are_refused_in_one_line():
    with pytest.raises(UserError, match="pairs is one of layer, stage, all, got 'block'"):
        SVCCA(LAYOUT, pairs="block")
    with pytest.raises(UserError, match="variance"):
        SVCCA(LAYOUT, variance=99)
    with pytest.raises(UserError, match="null_draws"):
        SVCCA(LAYOUT, null_draws=0)
