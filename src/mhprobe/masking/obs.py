"""Optimal brain surgery: the error of a layer without a unit, after the weights of the others are refitted.

Hassibi & Stork 1993, "Optimal Brain Surgeon", NeurIPS 5; for slices of a layer's input Kurtic et
al. 2023, "ZipLM", arXiv 2302.04089, with the curvature of van der Ouderaa et al. 2024, "The LLM
Surgeon", arXiv 2312.17244. A layer y = W x + b reads its units as slices S of x. To second order
the loss of an image rises by

    tr(dW A dW^T G) / 2,   A = cov(x),   G = sum over tokens of E[g g^T],   g = dL/dy,

when W changes by dW. The least rise without the slice S, over all changes of the other columns and
the bias, is

    tr((P_SS)^-1 C_SS) / 2,   P = A^-1,   C = W^T G W,

where C follows from slopes along x. Then S leaves P and C: of two units that say the same only the
first is cheap. ``repair`` (surgery/repair.py, per=weights) changes the weights; ``prune/order=obs``
is a knapsack of these losses.

Shapes: N rows (tokens of all images), K channels that enter a layer, H units of it, D width, A
units of all sites.
"""

from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import KINDS, HeadBatch, HeadLayout
from mhprobe.measures.base import Measure, counts
from mhprobe.measures.parts.moments import add_products, symmetric

# of the mean variance of a layer's input, as in ``repair``: without it redundant units cost nothing
RIDGE = 1e-4


class LossInTurn(Measure):
    """Rise of the loss when a unit goes after the cheaper ones of its layer.

    Column value (A,), nats; larger is more important. It never falls along a layer's order.
    """

    needs = frozenset({"grad"})
    of_units = frozenset(KINDS)
    rows: Tensor = counts("S")

    def __init__(self, layout: HeadLayout, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        for number, site in enumerate(layout.sites):
            square = torch.zeros(site.channels, site.channels, dtype=torch.float64)
            self.add_state(f"inputs_{number}", square[0])
            self.add_state(f"products_{number}", square)  # of inputs
            self.add_state(f"slopes_{number}", square)  # products of slopes

    def add(self, batch: HeadBatch) -> None:
        for number, (z, grad) in enumerate(
            zip(batch.z, batch.need("grad", self.name), strict=True)
        ):
            x_NK, slope_NK = (
                part[batch.valid].flatten(0, 1).flatten(1).double() for part in (z, grad)
            )
            self.rows[number] += len(x_NK)
            getattr(self, f"inputs_{number}").add_(x_NK.sum(0))
            add_products(getattr(self, f"products_{number}"), x_NK)
            add_products(getattr(self, f"slopes_{number}"), slope_NK)

    def finish(self) -> dict[str, Tensor]:
        of_sites = []
        for number, site in enumerate(self.layout.sites):
            mean_K = getattr(self, f"inputs_{number}") / self.rows[number]
            products, slopes = (
                symmetric(getattr(self, f"{name}_{number}")) for name in ("products", "slopes")
            )
            covariance = products / self.rows[number] - torch.outer(mean_K, mean_K)
            of_sites.append(losses_in_turn(covariance, slopes / self.images, site.head_dim))
        return {"value": torch.cat(of_sites)}


def losses_in_turn(covariance: Tensor, slopes: Tensor, width: int) -> Tensor:
    """(H,) rise of the loss as each unit goes, the cheapest first; never less than the one before.

    covariance: (K, K) of the layer's input. slopes: (K, K) sums over tokens of products of slopes,
    per image.
    """
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-300)
    inverse = torch.linalg.inv(covariance + ridge * torch.eye(len(covariance)).to(covariance))
    slopes = slopes.clone()
    losses = slopes.new_full((len(slopes) // width,), torch.nan)
    least = slopes.new_zeros(())
    while (left := losses.isnan().nonzero().flatten()).numel():
        columns = left[:, None] * width + torch.arange(width, device=left.device)  # (left, D)
        blocks = [part[columns[:, :, None], columns[:, None, :]] for part in (inverse, slopes)]
        rises = torch.linalg.solve(*blocks).diagonal(dim1=1, dim2=2).sum(1) / 2
        gone = columns[cheapest := int(rises.argmin())]
        losses[left[cheapest]] = least = torch.maximum(least, rises[cheapest])
        others = torch.linalg.solve(
            blocks[0][cheapest], inverse[gone]
        )  # (D, K) change of the others
        shift = slopes[gone] - blocks[1][cheapest] @ others / 2
        slopes.addmm_(others.mT, shift, alpha=-1).addmm_(shift.mT, others, alpha=-1)
        inverse.addmm_(inverse[:, gone], others, alpha=-1)
    return losses
