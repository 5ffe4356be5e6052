from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.heads import HeadSite
from mhprobe.measures.parts import hashing
from mhprobe.measures.parts.hashing import Pool
from mhprobe.measures.rarity import Codes, _nearest, _spread, patch_numbers, patches_of

SITE = HeadSite("a", 0, 0, 1, 2, 1, None, (2, 3), (4.0, 4.0), True)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 8, 12, generator=torch.Generator().manual_seed(seed))


def blobs(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10], [10, 10]]).repeat_interleave(
        torch.tensor([50, 30, 15, 5]), 0
    )
    return centres + torch.randn(centres.shape, generator=generator)


def test_a_patch_is_described_by_the_mean_colours_of_its_fields():
    x = images(1)
    patches = patches_of(x, SITE, cells=2)
    assert patches.shape == (1, 6, 12)
    block = x[0, :, 4:8, 8:12]  # the last token: second row, third column
    expected = torch.stack(
        [
            block[c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean()
            for c in range(3)
            for i in (0, 1)
            for j in (0, 1)
        ]
    )
    torch.testing.assert_close(patches[0, 5], expected)


def test_tokens_beyond_the_image_repeat_its_edge():
    wide = HeadSite("a", 0, 0, 1, 2, 0, None, (2, 4), (4.0, 4.0))
    patches = patches_of(images(1), wide, cells=1)
    assert patches.shape == (1, 8, 3)
    torch.testing.assert_close(patches[0, 3], images(1)[0, :, :4, -1].mean(1))


def test_numbers_depend_on_image_and_place_alone_and_look_random():
    x = patches_of(images(40), SITE, cells=4)
    numbers = patch_numbers(x)
    assert torch.equal(patch_numbers(x.flip(0)), numbers.flip(0)) and torch.equal(
        patch_numbers(x[3:4]), numbers[3:4]
    )
    assert len(numbers.unique()) == numbers.numel()
    assert (
        len(patch_numbers(patches_of(torch.zeros(1, 3, 8, 12), SITE, 4)).unique()) == 6
    )  # equal patches, other places
    # each of the upper bits is set in about half of 4,800 numbers: 0.5 +- 5 standard errors
    many = patch_numbers(patches_of(images(800, 1), SITE, cells=4)).flatten()
    for bit in range(63):
        assert abs((many >> bit & 1).double().mean() - 0.5) < 5 * 0.5 / len(many) ** 0.5


def test_the_sample_does_not_depend_on_order_batches_or_repetition():
    x = patches_of(images(30), SITE, cells=4)
    numbers = patch_numbers(x)
    whole, parts = Pool(50), Pool(50)
    whole.add(numbers.flatten(), [x.flatten(0, 1)])
    for i in [*range(29, -1, -1), 3, 4]:
        parts.add(numbers[i], [x[i]])
    assert torch.equal(whole.number, parts.number) and torch.equal(whole.parts[0], parts.parts[0])
    assert len(whole.number) == 50
    assert (numbers.flatten().sort().values[:50] == whole.number).all()


def test_densities_of_separate_blobs_are_their_shares():
    codes = Codes.fit(blobs(), 4)
    assert codes.density.sort().values.tolist() == pytest.approx([0.05, 0.15, 0.3, 0.5])
    assert codes.density_of(torch.tensor([[[10.0, 10.2], [0.3, 0.1]]])).tolist() == [
        pytest.approx([0.05, 0.5])
    ]


def test_the_order_of_patches_does_not_matter():
    patch = blobs()
    shuffled = patch[torch.randperm(len(patch), generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(
        Codes.fit(shuffled, 7).centre, Codes.fit(patch, 7).centre, rtol=1e-12, atol=1e-12
    )


def test_too_few_different_patches_for_the_codes_are_refused():
    with pytest.raises(
        UserError, match=r"rarity: 3 different patches for 4 codes.*fewer codes: rarity.codes=3"
    ):
        Codes.fit(blobs()[:3].repeat(5, 1), 4)
    with pytest.raises(UserError, match="rarity: 0 different patches for 4 codes"):
        Codes.fit(torch.empty(0, 2), 4)


@pytest.mark.peer
@pytest.mark.parametrize("codes", [4, 9])
def test_scikit_learns_k_means_ends_where_ours_does(codes):
    from sklearn.cluster import KMeans

    patch = blobs(2).double()
    peer = KMeans(
        codes, init=_spread(patch, codes).numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd"
    )
    labels = peer.fit_predict(patch.numpy())
    ours = Codes.fit(patch, codes)
    np.testing.assert_allclose(peer.cluster_centers_, ours.centre.numpy(), rtol=1e-10, atol=1e-10)
    assert (_nearest(patch, ours.centre).numpy() == labels).all()
    np.testing.assert_allclose(
        np.bincount(labels, minlength=codes) / len(patch), ours.density.numpy()
    )


def test_the_sample_replaces_its_parts_one_after_the_other(monkeypatch):
    sample, alive = Pool(3), []
    sample.add(torch.arange(4), [torch.rand(4, 5) for _ in range(3)])
    before = [weakref.ref(part) for part in sample.parts]

    def counted(*args):
        alive.append(sum(part() is not None for part in before))
        return of_both(*args)

    of_both = hashing._of_both
    monkeypatch.setattr(hashing, "_of_both", counted)
    sample.add(torch.arange(-2, 0), [torch.rand(2, 5) for _ in range(3)])
    assert alive == [3, 2, 1], "of the old parts, beside the new ones"
    assert sample.number.tolist() == [-2, -1, 0]


STATM = Path("/proc/self/statm")  # pages of 4 KiB: virtual, resident, ...


@pytest.mark.skipif(not STATM.exists(), reason="Linux tells what a process holds")
def test_free_places_of_a_pool_take_no_memory():
    pool, one = Pool(64), torch.ones(1, 2**20)  # 4 MiB each
    before = int(STATM.read_text().split()[1])
    pool.add(torch.tensor([7]), [one])
    pool.add(torch.tensor([3]), [2 * one])
    assert (int(STATM.read_text().split()[1]) - before) * 4 / 1024 < 64
    assert pool.held[0].tolist() == [3, 7] and pool.held[1][:, 0].tolist() == [2, 1]
