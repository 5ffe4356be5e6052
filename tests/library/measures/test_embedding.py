from __future__ import annotations

import pytest
import torch
from sklearn.cluster import AgglomerativeClustering

from mhprobe.measures.parts.embedding import cluster, embed, layer_ratio


def distances(points: torch.Tensor) -> torch.Tensor:
    return (points[:, None] - points).norm(dim=-1)


def points(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_points_of_a_plane_are_found_again_up_to_a_motion():
    distance = distances(points(12))
    found, stress = embed(distance)
    torch.testing.assert_close(distances(found), distance, rtol=1e-3, atol=1e-3)
    assert stress < 1e-3
    torch.testing.assert_close(
        found.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_what_does_not_fit_into_a_plane_has_stress():
    equal = 1 - torch.eye(10, dtype=torch.float64)
    assert embed(equal)[1] > 0.2


def test_rounding_noise_changes_nothing():
    distance = distances(points(20)).sqrt()
    noisy = distance + 1e-15 * torch.rand(
        20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    assert not torch.equal(distance, noisy)
    torch.testing.assert_close(embed(noisy)[0], embed(distance)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_or_equal_heads_are_no_error(count):
    found, stress = embed(torch.zeros(count, count, dtype=torch.float64))
    assert (found == 0).all() and stress == 0
    assert cluster(torch.zeros(count, count, dtype=torch.float64), 4).tolist() == list(range(count))
    if count > 1:
        found, stress = embed(1 - torch.eye(count, dtype=torch.float64))
        torch.testing.assert_close(
            distances(found), 1 - torch.eye(count, dtype=torch.float64), rtol=1e-3, atol=1e-3
        )


def test_clusters_are_numbered_in_the_order_of_their_first_heads():
    blobs = torch.cat(
        [points(1), points(3, 1) * 0.01 + 9, points(1) + 0.01, points(2, 2) * 0.01 - 9]
    )
    assert cluster(distances(blobs).square(), 3).tolist() == [0, 1, 1, 1, 0, 2, 2]


def test_two_groups_are_found_beside_an_odd_head_that_average_linkage_would_cut_off():
    groups = torch.cat(
        [0.3 * points(6), 0.3 * points(6, 1) + torch.tensor([4.0, 0.0]), torch.tensor([[2.0, 5.0]])]
    )
    distance = distances(groups).square()
    found = cluster(distance, 2).tolist()
    assert found[:6] == [0] * 6 and found[6:12] == [1] * 6
    average = AgglomerativeClustering(2, metric="precomputed", linkage="average").fit_predict(
        distance.sqrt().numpy()
    )
    assert (
        len(set(average[:12].tolist())) == 1
    )  # both groups are one, and the odd head is the other


def test_clusters_are_those_of_wards_linkage_on_points_with_these_squared_distances():
    for seed in range(20):
        cloud = points(9, seed)
        expected = AgglomerativeClustering(3, linkage="ward").fit_predict(cloud.numpy()).tolist()
        number = {label: place for place, label in enumerate(dict.fromkeys(expected))}
        assert cluster(distances(cloud).square(), 3).tolist() == [
            number[label] for label in expected
        ]


def test_p_is_the_share_of_relabellings_that_are_as_good():
    near = torch.cat([points(6) * 0.1, points(6, 1) * 0.1 + 3])
    layer, group = torch.arange(12) // 6, torch.zeros(12, dtype=torch.long)
    ratio, p = layer_ratio(distances(near), layer, group, permutations=199, seed=0)
    assert ratio < 0.1
    # 2 of the 924 ways to split are this one: among 199 draws hardly more than itself
    assert 1 / 200 <= p <= 4 / 200
    _, nothing = layer_ratio(distances(near), torch.arange(12) % 2, group, permutations=199, seed=0)
    assert nothing > 0.1


def test_p_is_uniform_where_layers_mean_nothing():
    layer, group = torch.arange(8) // 4, torch.zeros(8, dtype=torch.long)
    found = torch.stack(
        [layer_ratio(distances(points(8, s)), layer, group, 99, s)[1] for s in range(60)]
    )
    assert 0.35 < found.mean() < 0.65  # 0.5 +- 4 standard errors of 0.29 / sqrt(60)
    assert found.min() < 0.2 and found.max() > 0.8


def test_heads_change_places_within_their_group_only():
    """Two groups far apart, of one layer each: no relabelling changes anything, so there is nothing to compare."""
    layer = torch.arange(6) // 3
    ratio, p = layer_ratio(distances(points(6)), layer, layer, 20, 0)
    assert ratio.isnan() and p.isnan()
