"""Relations between the patches of any image, without masks: which patch is right for a query?

Clark et al., 2019, arXiv 1906.04341, section 4, score heads on syntactic relations. Pictures have no syntax, so these
stand in for it; each says which keys are right for a query, and the query itself never is:

    same colour     the key's mean colour is of the same k-means cluster as the query's
    mirror image    the key is at the query's place in the image flipped left to right
    opposite        the key is at the query's place in the image turned by 180 degrees
    along an edge   the key is the next patch, either way, along the edge that runs through the query; only queries
                    with more edge than the median patch of the image count

The edge is that of the structure tensor (Bigun & Granlund 1987): across the direction in which brightness changes most.

Shapes: B images, h x w patches, T = h w, R relations.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

RELATIONS = ("same colour", "mirror image", "opposite", "along an edge")
_ALONG = ((0, 1), (1, 1), (1, 0), (1, -1))  # (down, right) of an edge at 0, 45, 90, 135 degrees


def right_keys(pictures: Tensor, grid: tuple[int, int], centres: Tensor) -> Tensor:
    """(B, R, T, T) bool, whether the key is right for the query, in the order of RELATIONS.

    pictures: (B, 3, height, width). centres: (clusters, 3) mean colours of ``palette``.
    """
    height, width = grid
    cell = torch.arange(height * width, device=pictures.device).view(grid)
    colour_BT = torch.cdist(colours(pictures, grid), centres).argmin(-1)
    same = colour_BT[:, :, None] == colour_BT[:, None, :]
    mirror, opposite = (cell.flip(axes).flatten()[:, None] == cell.flatten() for axes in ((1,), (0, 1)))
    right = torch.stack([same, mirror.expand_as(same), opposite.expand_as(same), _along_edges(pictures, grid)], 1)
    itself = torch.eye(height * width, dtype=torch.bool, device=pictures.device)
    return right & ~itself


def colours(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, 3) float64 mean colour of each patch."""
    return F.adaptive_avg_pool2d(pictures.double(), grid).flatten(2).transpose(1, 2)


def palette(pictures: Iterable[Tensor], grid: tuple[int, int], clusters: int, seed: int) -> Tensor:
    """(clusters, 3) the mean colours of patches, by k-means over all patches of ``pictures``."""
    from sklearn.cluster import KMeans

    patches = torch.cat([colours(each, grid).flatten(0, 1).cpu() for each in pictures])
    return torch.from_numpy(KMeans(clusters, n_init=1, random_state=seed).fit(patches.numpy()).cluster_centers_)


def _along_edges(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, T) bool."""
    light = pictures.double().mean(1)
    down, right = torch.gradient(light, dim=(1, 2))
    # the structure tensor of each patch
    xx, yy, xy = (F.adaptive_avg_pool2d(product, grid) for product in (right**2, down**2, right * down))
    across = 0.5 * torch.atan2(2 * xy, xx - yy)  # the direction of the slope, with y downwards
    number = ((across / math.pi + 0.5) * 4).round().long() % 4  # the edge is at a right angle to it
    strong = (xx + yy).flatten(1)
    steps = torch.tensor(_ALONG, device=pictures.device)[number.flatten(1)]  # (B, T, 2)
    height, width = grid
    cell = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1).flatten(0, 1)
    offset = (cell[None, :] - cell[:, None]).to(pictures.device)  # key minus query
    along = (offset == steps[:, :, None]).all(-1) | (offset == -steps[:, :, None]).all(-1)
    return along & (strong > strong.median(1, keepdim=True).values)[:, :, None]
