"""What every similarity between heads promises: SVCCA, CCA, PWCCA, CKA (plain and debiased), Procrustes."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.cca import CCA
from mhprobe.measures.cka import CKA
from mhprobe.measures.parts.moments import Moments
from mhprobe.measures.parts.pairs import DeadHead, DuplicateHead, FewImages
from mhprobe.measures.procrustes import Procrustes
from mhprobe.measures.pwcca import PWCCA
from mhprobe.measures.svcca import SVCCA
from oracles import cca, cka, procrustes, pwcca, svcca
from related import LAYOUT, D, batch_of, related, rows_of

DEBIASED = partial(CKA, debiased=True)
MEASURES = {
    "svcca": (SVCCA, svcca.similarity),
    "cca": (CCA, cca.similarity),
    "pwcca": (PWCCA, pwcca.similarity),
    "cka": (CKA, cka.similarity),
    "cka debiased": (DEBIASED, cka.debiased),
    "procrustes": (Procrustes, procrustes.similarity),
}
OFF = ~torch.eye(7, dtype=torch.bool)


@pytest.fixture(params=MEASURES)
def measure(request):
    """A measure and its pairwise oracle."""
    return MEASURES[request.param]


def columns(kind, z, layout=LAYOUT, **options):
    made = kind(layout, **options)
    for start in range(0, len(z[0]), 4):  # several batches
        made.update(batch_of([site[start : start + 4] for site in z]))
    return made.columns()


def gaussian(images=10, tokens=12, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(images, tokens, s.num_heads, D, generator=generator, dtype=torch.float64)
        for s in LAYOUT.sites
    ]


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ("layer", [(0, 1, 2), (3, 4), (5, 6)]),
        ("stage", [(0, 1, 2, 3, 4), (5, 6)]),
        ("all", [tuple(range(7))]),
    ],
)
def test_every_pair_in_scope_matches_the_pairwise_oracle(measure, pairs, groups):
    kind, oracle = measure
    z = related(seed=3)
    got, rows = columns(kind, z, pairs=pairs), rows_of(z)
    inside = {pair for group in groups for pair in itertools.product(group, group)}
    for a, b in itertools.product(range(7), range(7)):
        if (a, b) in inside:
            assert float(got["value"][a, b]) == pytest.approx(oracle(rows[a], rows[b]), abs=1e-8)
        else:
            assert got["value"][a, b].isnan() and got["null"][a, b].isnan()
    off = got["value"][OFF]
    assert off[off.isfinite()].std() > 0.01  # pairs differ
    assert (got["rows"] == 120).all()


def test_a_head_and_its_copy_are_equal_and_named(measure):
    kind, _ = measure
    z = related()
    z[1][:, :, 1] = z[1][:, :, 0]
    with pytest.warns(DuplicateHead, match="b head 0 and b head 1"):
        value = columns(kind, z)["value"]
    assert float(value[3, 4]) == pytest.approx(1, abs=1e-9)
    assert (value.diagonal() == 1).all()


def test_a_rotation_a_scale_and_an_offset_change_nothing(measure):
    kind, _ = measure
    z = related()
    rotation = torch.linalg.qr(
        torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ).Q
    z[0][:, :, 1] = 3 * z[0][:, :, 0] @ rotation - 7
    with pytest.warns(DuplicateHead, match="a head 0 and a head 1"):
        value = columns(kind, z)["value"]
    assert float(value[0, 1]) == pytest.approx(1, abs=1e-9)
    # the third head sees both alike, up to PWCCA's weights: those of the two heads' own channels
    assert float(value[2, 0] - value[2, 1]) == pytest.approx(0, abs=1e-9)
    assert float(value[0, 2]) < 0.99


@pytest.mark.parametrize(
    ("name", "invariant"), [("cca", True), ("pwcca", True), ("cka", False), ("procrustes", False)]
)
def test_any_other_linear_map_changes_what_rests_on_size_and_not_what_rests_on_correlation(
    name, invariant
):
    kind, _ = MEASURES[name]
    z = gaussian()
    z[0][:, :, 1] = z[0][:, :, 0] * torch.logspace(-2, 0, D, dtype=torch.float64)
    if invariant:
        with pytest.warns(DuplicateHead):
            assert float(columns(kind, z)["value"][0, 1]) == pytest.approx(1, abs=1e-9)
    else:
        assert float(columns(kind, z)["value"][0, 1]) < 0.9


def test_unrelated_heads_reach_the_null_level(measure):
    kind, _ = measure
    got = columns(kind, gaussian(), pairs="all")
    difference = (got["value"] - got["null"])[OFF]
    # 21 pairs, nearly independent of each other; their nulls share the same ten permutations of 10
    # images
    assert float(difference.mean()) == pytest.approx(
        0, abs=4 * float(difference.std()) * (2 / 21) ** 0.5
    )
    assert difference.std() > 0


def test_a_dead_head_is_similar_to_nothing_and_named(measure):
    kind, _ = measure
    z = related(seed=3)
    z[0][:, :, 1] = 0.1 + 0.2  # constant, and not exactly representable
    z[1][:, :, 0] = 0
    with pytest.warns(DeadHead, match="a head 1, b head 0"):
        got = columns(kind, z, pairs="all")
    for dead in (1, 3):
        assert (got["value"][dead] == 0).all() and (got["value"][:, dead] == 0).all()
        assert (got["null"][dead] == 0).all()
    assert (got["value"][0, [2, 4, 5, 6]] > 0).all()
    assert got["value"].isfinite().all() and got["null"].isfinite().all()


def test_too_few_rows_are_refused(measure):
    kind, _ = measure
    with pytest.warns(FewImages):
        got = columns(kind, gaussian(images=1, tokens=D))
    assert got["value"][:3, :3].isfinite().all()
    with pytest.raises(UserError, match=rf"a has n = {D - 1} rows .* d = {D} .*more images"):
        columns(kind, gaussian(images=1, tokens=D - 1))


def test_all_measures_of_a_run_share_one_product_per_batch(monkeypatch):
    made = []
    add = Moments.add
    monkeypatch.setattr(
        Moments, "add", lambda self, x, fold: made.append(len(x)) or add(self, x, fold)
    )
    batch = batch_of(related(images=4))
    measures = [kind(LAYOUT) for kind, _ in MEASURES.values()]
    for one in measures:
        one.update(batch)
    assert sum(made) == 48 * len(LAYOUT.sites)  # fold by fold
    # and yet they are separate sums
    measures[0].reset()
    assert all(int(one.rows_0.sum()) == 48 for one in measures[1:])


def test_a_swin_layer_may_have_any_number_of_heads(measure):
    kind, _ = measure
    layout = HeadLayout(
        (HeadSite("s.attn", 0, 0, 1, 4, grid=(3, 3)), HeadSite("t.attn", 1, 1, 3, 8, grid=(3, 3)))
    )
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(20, 9, s.num_heads, s.head_dim, generator=generator) for s in layout.sites]
    got = columns(kind, z, layout, pairs="stage")
    assert got["value"][0, 0] == 1 and got["value"][0, 1:].isnan().all()
    assert got["value"][1:, 1:].isfinite().all()
    with pytest.raises(
        UserError, match=r"s\.attn \(9 tokens, width 4\) with t\.attn \(9 tokens, width 8\)"
    ):
        columns(kind, z, layout, pairs="all")


def test_wrong_options_are_refused_in_one_line(measure):
    kind, _ = measure
    with pytest.raises(UserError, match="pairs is one of layer, stage, all, got 'block'"):
        kind(LAYOUT, pairs="block")
    with pytest.raises(UserError, match="null_draws"):
        kind(LAYOUT, null_draws=0)
