"""The null of permuted images, of every similarity between heads."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.cca import CCA
from mhprobe.measures.cka import CKA
from mhprobe.measures.layer_similarity import LayerSimilarity
from mhprobe.measures.parts.folds import FewFolds, folds_of_null
from mhprobe.measures.parts.pairs import FewImages
from mhprobe.measures.procrustes import Procrustes
from mhprobe.measures.pwcca import PWCCA
from mhprobe.measures.svcca import SVCCA
from oracles import cca, cka, permuted, procrustes, pwcca, svcca

D, GRID, TOKENS = 4, (4, 5), 21  # a class token and a grid
SITE = HeadSite("a", 0, 0, 2, D, prefix_tokens=1, grid=GRID, class_token=True)
LAYOUT = HeadLayout((SITE,))
MEASURES = {
    "svcca": (SVCCA, svcca.similarity),
    "cca": (CCA, cca.similarity),
    "pwcca": (PWCCA, pwcca.similarity),
    "cka": (CKA, cka.similarity),
    "cka debiased": (partial(CKA, debiased=True), cka.debiased),
    "procrustes": (Procrustes, procrustes.similarity),
}


@pytest.fixture(params=MEASURES)
def measure(request):
    return MEASURES[request.param]


def outputs(images: int, seed: int = 0, shared: float = 1.0, position: float = 0.0) -> torch.Tensor:
    """(images, T, 2, D) of two heads, whose tokens say much the same about an image.

    shared: how much of the images the two heads both see. position: how much both say about where a
    token is.
    """
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    seen, where = randn(images, 1, D) + 0.3 * randn(images, TOKENS, D), randn(TOKENS, D)
    own = (randn(images, 1, D) + 0.3 * randn(images, TOKENS, D) for _ in range(2))
    return torch.stack(
        [each + (shared * seen + position * where) @ randn(D, D) + 2 for each in own], 2
    )


def columns(kind, z, layout=LAYOUT, size=7, **options):
    made = kind(layout, **options)
    for part in z.split(size):
        made.update(
            HeadBatch(
                z=(part,), logits=torch.zeros(len(part), 2), valid=torch.ones(len(part)).bool()
            )
        )
    return made.columns()


@pytest.mark.parametrize("null", ["images", "rolled"])
def test_null_is_that_of_images_permuted_against_each_other(measure, null):
    kind, similarity = measure
    # the oracle rolls all it gets, so there is no class token
    layout, z = (
        HeadLayout((HeadSite("a", 0, 0, 2, D, grid=GRID),)),
        outputs(40, position=0.5)[:, 1:],
    )
    got = columns(kind, z, layout, size=40, null=null, null_draws=20)
    x, y = z[:, :, 0].numpy(), z[:, :, 1].numpy()
    brute = permuted.null(similarity, x, y, 10, grid=GRID if null == "rolled" else None)
    # means over 10 and over 20 draws, these from variances of 40 folds' products, which err by up
    # to a fifth
    error = brute.std() * (1 / 10 + 1 / 20 + 1 / 8) ** 0.5
    assert float(got["null"][0, 1]) == pytest.approx(brute.mean(), abs=4 * error)
    assert float(got["null_draws"][0, 1].mean()) == pytest.approx(
        float(got["null"][0, 1]), abs=1e-12
    )


@pytest.mark.parametrize("noise", [0.05, 2.0])
@pytest.mark.parametrize("name", ["svcca", "pwcca", "procrustes", "cka"])
def test_the_null_of_wide_heads_is_that_of_permuted_images_too(name, noise):
    """As many folds as channels: folds that were swapped themselves would give half of it where tokens are alike."""
    kind, similarity = MEASURES[name]
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(600, 1, 2, 64, generator=generator) + noise * torch.randn(
        600, 6, 2, 64, generator=generator
    )
    got = columns(kind, z, HeadLayout((HeadSite("a", 0, 0, 2, 64, grid=(2, 3)),)), size=200)
    brute = permuted.null(similarity, *(z[:, :, head].double().numpy() for head in (0, 1)), times=3)
    # draws of so many correlations differ by 1 %, and their variances are of 128 products of folds
    assert float(got["null"][0, 1]) == pytest.approx(brute.mean(), rel=0.05)


def test_heads_whose_images_are_permuted_against_each_other_score_at_the_null(measure):
    kind, _ = measure
    z, scores, nulls = outputs(40, seed=1, position=0.5), [], []
    as_it_is = columns(kind, z, size=40)
    assert as_it_is["value"][0, 1] > as_it_is["null_draws"][0, 1].max()
    for seed in range(8):
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
        got = columns(
            kind, torch.stack([z[:, :, 0], z[order, :, 1]], 2), size=40, seed=seed, null_draws=4
        )
        scores.append(float(got["value"][0, 1]))
        nulls.append(float(got["null"][0, 1]))
    error = (np.var(scores, ddof=1) / 8 + np.var(nulls, ddof=1) / 8) ** 0.5
    assert np.mean(scores) == pytest.approx(np.mean(nulls), abs=4 * error)


def test_the_second_head_of_a_pair_has_the_draws_of_the_first(measure):
    kind, _ = measure
    draws = columns(kind, outputs(40), size=40)["null_draws"]
    if kind is not PWCCA:  # whose value is another one in the other direction
        torch.testing.assert_close(draws, draws.transpose(0, 1), rtol=1e-9, atol=1e-12)


def test_what_two_heads_share_through_position_alone_is_chance_and_rolling_shows_it(measure):
    kind, _ = measure
    z = outputs(200, shared=0.0, position=2.0)
    got, rolled = columns(kind, z, size=200), columns(kind, z, size=200, null="rolled")
    assert float(got["value"][0, 1]) == pytest.approx(float(got["null"][0, 1]), abs=0.05)
    assert got["value"][0, 1] > 0.2
    assert rolled["null"][0, 1] < 0.6 * got["null"][0, 1]


def test_the_null_falls_with_the_images_and_not_with_the_tokens():
    few, many = columns(SVCCA, outputs(30)), columns(SVCCA, outputs(480))
    # as one over the root of the images: four times lower, give or take the spread of the draws
    assert float(few["null"][0, 1] / many["null"][0, 1]) == pytest.approx(4, rel=0.35)
    doubled = columns(
        SVCCA, outputs(30).repeat(1, 2, 1, 1), HeadLayout((HeadSite("a", 0, 0, 2, D),))
    )
    assert float(doubled["null"][0, 1]) == pytest.approx(float(few["null"][0, 1]), rel=0.2)


@pytest.mark.parametrize("null", ["images", "rolled"])
def test_without_the_class_token_it_is_as_if_there_were_none(measure, null):
    kind, _ = measure
    z = outputs(20)
    z[:, 0] *= 10  # it is another sort of row
    got = columns(kind, z, size=20, tokens="patches", null=null, null_draws=2)
    bare = HeadLayout((HeadSite("a", 0, 0, 2, D, grid=GRID),))
    # images are dealt by their first heads' outputs here, which hold the class token: by rows, and
    # values, all the same
    without = columns(kind, z[:, 1:], bare, size=20, null=null, null_draws=2)
    assert int(got["rows"][0]) == 20 * (TOKENS - 1)
    torch.testing.assert_close(got["value"], without["value"])
    assert abs(got["value"][0, 1] - columns(kind, z, size=20)["value"][0, 1]) > 0.01


def test_it_is_seeded_and_does_not_depend_on_how_images_come():
    z = outputs(40)
    got = columns(SVCCA, z)
    for other in (columns(SVCCA, z, size=1), columns(SVCCA, z.flip(0), size=11)):
        torch.testing.assert_close(other["null"], got["null"], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(columns(SVCCA, z, seed=1)["null"], got["null"], rtol=1e-3)


def test_images_are_dealt_by_their_pixels():
    z, pixels = outputs(12), torch.randn(12, 3, 4, 4)
    made = [SVCCA(LAYOUT) for _ in range(2)]
    for measure, images in zip(made, (pixels, None), strict=True):
        batch = HeadBatch(
            z=(z,), logits=torch.zeros(12, 2), valid=torch.ones(12).bool(), images=images
        )
        measure.update(batch)
    assert made[0].fold_images_0.sum() == made[1].fold_images_0.sum() == 12
    assert not torch.equal(made[0].fold_images_0, made[1].fold_images_0)


def test_one_image_has_no_null_and_few_are_warned_of(measure):
    kind, _ = measure
    with pytest.warns(FewImages, match=f"only 1 image for {D} channels: column null is empty"):
        got = columns(kind, outputs(1))
    assert got["null"].isnan().all() and got["value"].isfinite().all()
    with pytest.warns(FewImages):
        columns(kind, outputs(D - 1))
    got = columns(kind, outputs(D))
    assert int(got["images"]) == D and (got["rows"] == D * TOKENS).all()


@pytest.mark.parametrize("options", [{}, {"folds": 16}, {"interval": False}, {"tokens": "patches"}])
def test_what_a_similarity_keeps_is_known_before_the_first_image(options):
    made = CKA(LAYOUT, **options)
    said = made.bytes_kept
    z = outputs(5)
    made.update(HeadBatch(z=(z,), logits=torch.zeros(5, 2), valid=torch.ones(5, dtype=torch.bool)))
    taken = sum(getattr(made, name).nbytes for name in made.metric_state)
    assert taken * 0.9 < said <= taken  # without the counts of rows and images, and the means


@pytest.mark.parametrize(("floats", "folds"), [(2**21, 64), (2**21 + 1, 32), (2**40, 8)])
def test_sums_of_the_null_stay_within_a_gigabyte_as_far_as_eight_folds_allow(floats, folds):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert folds_of_null("cka", floats) == folds
    assert [warning.category for warning in said] == [FewFolds] * (folds < 64)


def test_a_large_grid_has_a_null_of_fewer_folds_which_is_said_and_one_that_is_asked_for_is_kept(
    monkeypatch,
):
    floats = TOKENS * 2 * D
    monkeypatch.setattr("mhprobe.measures.parts.folds.ROOM", 8 * floats * 16)
    z = outputs(40)
    with pytest.warns(FewFolds, match="cka: chance is drawn from 16 folds .* instead of 64"):
        few = columns(CKA, z)
    asked, plain = columns(CKA, z, folds=16), columns(CKA, z, folds=64)
    torch.testing.assert_close(few["null"], asked["null"], rtol=0, atol=0)
    torch.testing.assert_close(few["low"], plain["low"], rtol=1e-12, atol=0)  # eight folds of each
    assert not torch.equal(few["null"], plain["null"])


def test_layers_have_the_same_null():
    layout = HeadLayout(
        (SITE, HeadSite("b", 0, 1, 2, D, prefix_tokens=1, grid=GRID, class_token=True))
    )
    z = outputs(40, position=0.5)
    for method, similarity in (("cka", cka.similarity), ("svcca", svcca.similarity)):
        made = LayerSimilarity(layout, method=method, null_draws=20, folds=16)
        twice = tuple(z[:, :, [h, h]] + 0.1 * torch.randn(z.shape) for h in range(2))
        made.update(HeadBatch(z=twice, logits=torch.zeros(40, 2), valid=torch.ones(40).bool()))
        x, y = (site.flatten(2).numpy() for site in twice)
        brute = permuted.null(similarity, x, y, 10)
        error = brute.std() * (1 / 10 + 1 / 20 + 1 / 8) ** 0.5
        assert float(made.columns()["null"][0, 1]) == pytest.approx(brute.mean(), abs=4 * error)


def test_what_cannot_be_permuted_is_refused_in_one_line():
    free = HeadLayout((HeadSite("a", 0, 0, 2, D),))
    with pytest.raises(UserError, match="svcca: null is one of images, rolled, got 'rows'"):
        SVCCA(LAYOUT, null="rows")
    with pytest.raises(
        UserError, match="folds: expected a whole number of at least 2 or null, got 1"
    ):
        SVCCA(LAYOUT, folds=1)
    with pytest.raises(UserError, match="null=rolled rolls the grid of a, which is not fixed"):
        SVCCA(free, null="rolled")
    made = SVCCA(free)
    z = outputs(5)
    rest = {"logits": torch.zeros(5, 2), "valid": torch.ones(5).bool()}
    made.update(HeadBatch(z=(z,), **rest))
    channels = z[0, 0].numel()
    for part, now in (
        (z[:, :9], f"9 tokens of {channels}"),
        (z[..., 1:], f"{z.shape[1]} tokens of"),
    ):
        with pytest.raises(
            UserError,
            match=f"images with {now} .* after images with 21 tokens of {channels} channels",
        ):
            made.update(HeadBatch(z=(part,), **rest))
