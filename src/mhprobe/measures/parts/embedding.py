"""A matrix of distances between heads as points in a plane, as clusters, and as one number: do layers differ?

The plane is metric multidimensional scaling (SMACOF), as in Clark et al., 2019, arXiv 1906.04341,
figure 6, started from classical scaling, so the same distances give the same picture. Shapes: N
heads of one group.
"""

import torch
from scipy.cluster.hierarchy import cut_tree, ward
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn.functional import pad

_DIGITS = 10  # rounding noise of the sums must not turn the picture or break a tie


def embed(distance: Tensor) -> tuple[Tensor, float]:
    """(N, 2) points whose distances are close to (N, N) ``distance``, centred, and Kruskal's stress-1 (0: perfect)."""
    from sklearn.manifold import smacof

    distance = distance.round(decimals=_DIGITS)
    if (size := distance.square().sum()) == 0:
        return distance.new_zeros(len(distance), 2), 0.0
    plane = pad(scaled(distance)[:, -2:].flip(1), (0, 1))[:, :2]
    # a dimension has no sign of its own: its largest entry is positive
    start = plane * plane.gather(0, plane.abs().argmax(0, keepdim=True)).sign()
    solution, _ = smacof(
        distance.numpy(),
        init=start.numpy(),
        n_init=1,
        max_iter=1000,
        eps=1e-9,
        random_state=0,
        normalized_stress=False,
    )
    points = torch.from_numpy(solution)
    points = points - points.mean(0)
    error = (torch.cdist(points, points) - distance).square().sum()
    return points, float((error / size).sqrt())


def scaled(distance: Tensor) -> Tensor:
    """(N, dimensions) points with nearly these distances (N, N): the positive dimensions of classical scaling."""
    count = len(distance)
    centre = torch.eye(count, dtype=distance.dtype) - 1 / count
    strength, direction = torch.linalg.eigh(-0.5 * centre @ distance.square() @ centre)
    positive = strength > 1e-9 * strength.abs().max()
    return (
        direction[:, positive] * strength[positive].sqrt()
        if positive.any()
        else distance.new_zeros(count, 1)
    )


def cluster(distance: Tensor, clusters: int) -> Tensor:
    """(N,) int64 cluster of each head, numbered in the order of their first heads, by Ward's linkage.

    distance: (N, N) divergences that are squared distances, as mean Jensen-Shannon divergences are
    (Endres & Schindelin, 2003, IEEE Transactions on Information Theory 49:1858).
    """
    if len(distance) == 1:
        return torch.zeros(1, dtype=torch.long)
    root = distance.round(decimals=_DIGITS).clamp(min=0).sqrt()
    tree = ward(squareform(root.numpy(), checks=False))
    labels = cut_tree(tree, min(clusters, len(distance))).flatten().tolist()
    number = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([number[label] for label in labels])


def layer_ratio(
    distance: Tensor, layer: Tensor, group: Tensor, permutations: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Mean distance within layers over that between, and p: how rarely chance gives a smaller one.

    distance: (A, A), only pairs of one group count. layer, group: (A,). p: share of relabellings
    (heads of a group swap their layers) whose ratio is at most the observed one, itself included.
    NaN, NaN without pairs of both sorts.
    """
    distance = distance.round(decimals=_DIGITS)
    compared = (group[:, None] == group).triu(1)
    values = distance[compared]

    def ratio(layer: Tensor) -> Tensor:
        same = (layer[:, None] == layer)[compared]
        return values[same].mean() / values[~same].mean()

    observed = ratio(layer)  # of none the mean is NaN
    if observed.isnan():
        return observed, observed
    generator = torch.Generator().manual_seed(seed)
    as_small = 1
    for _ in range(permutations):
        shuffled = layer.clone()
        for number in group.unique():
            (heads,) = (group == number).nonzero(as_tuple=True)
            shuffled[heads] = layer[heads[torch.randperm(len(heads), generator=generator)]]
        as_small += int(ratio(shuffled) <= observed + 1e-12)
    return observed, distance.new_tensor(as_small / (permutations + 1))
