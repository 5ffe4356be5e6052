"""Are two heads made alike? Cosine and subspace overlap of their weights: what makes the learning in each head unique?

A head enters the model only through two circuits (Elhage et al., 2021, A Mathematical Framework for
Transformer Circuits): W_QK = W_Q^T W_K scores pairs of tokens, W_OV = W_V^T W_O is what an attended
token writes. Their inner products come from D x D products, <W_QK,a, W_QK,b> = sum of (W_Q,a
W_Q,b^T) * (W_K,a W_K,b^T). Overlap of two row
spaces: the mean squared cosine of their principal angles, ||Q_a Q_b^T||_F^2 / min(ranks) with
orthonormal rows Q; of two circuits the product of both overlaps. Biases and the norm before the
block are left out.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.heads import HeadLayout, HeadWeights
from mhprobe.measures.base import OfWeights, sums
from mhprobe.measures.parts.pairs import (
    Pairs,
    flat_heads,
    groups_of_sites,
    refuse_unlike_sites,
    warn_duplicates,
)
from mhprobe.stats.significance import Z95

Of = Literal["query", "key", "value", "output", "qk", "ov"]
By = Literal["cosine", "overlap"]
KINDS = get_args(Of)
_RANK = 1e-12  # share of a matrix' squared norm below which a direction is rounding noise


class WeightSimilarity(OfWeights):
    """Similarity of the weights of every pair of heads; no image changes it.

    pairs: compare the heads of one "layer", of one "stage", or "all". Needs equal widths of heads
    and stream.
    of: "ov" or "qk" for a circuit, or one matrix: "query", "key", "value", "output".
    by: "cosine" of the entries, in [-1, 1], which for single matrices depends on the basis inside
        the head; or "overlap" of the subspaces, in [0, 1], which does not.

    Columns, (A, A): value, larger is more alike, 0 for a head without weights; null, its mean for
    randomly rotated weights, with null_low and null_high, between which 95 % of them lie (normal
    approximation). cosine_<of> and overlap_<of> for all six. NaN outside the groups.
    Raises UserError if weights of a group differ in width. DuplicateHead names pairs above 0.99999.
    """

    fooled_by = "by definition: heads that do the same by other weights; equal weights in layers with other inputs"
    kind = "pairwise"
    larger = "the two heads' weights are more alike"

    similarity: Tensor = sums(12, "A", "A")  # six cosines and six overlaps,
    chance: Tensor = sums(
        2, "A", "A"
    )  # mean and variance of the value for randomly rotated weights

    def __init__(
        self,
        layout: HeadLayout,
        pairs: Pairs = "layer",
        of: Of = "ov",
        by: By = "cosine",
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        self.groups = groups_of_sites(self.name, layout, pairs)
        self.pairs, self.of, self.by = pairs, of, by
        self.label = f"{by} of {of.upper() if len(of) == 2 else of} weights"

    def look(self, weights: Sequence[HeadWeights]) -> None:
        for sites in self.groups:
            stacked = self._stacked(weights, sites)
            flat = flat_heads(self.layout, sites)
            place = (slice(None), flat[:, None], flat)
            if not all(w.isfinite().all() for w in stacked):
                self.similarity[place] = (
                    torch.nan
                )  # not an error here: other ranks would wait for this one
                continue
            cosine, overlap, chance = compare(stacked)
            self.similarity[place] = torch.cat([cosine, overlap])
            self.chance[place] = chance[
                :, KINDS.index(self.of) + len(KINDS) * (self.by == "overlap")
            ]

    def finish(self) -> dict[str, Tensor]:
        inside = torch.zeros_like(self.similarity[0], dtype=torch.bool)
        for sites in self.groups:
            span = slice(self.layout.offsets[sites[0]], self.layout.offsets[sites[-1] + 1])
            inside[span, span] = True
        similarity = (self.similarity / self.models).where(inside, torch.nan)
        null, variance = (self.chance / self.models).where(inside, torch.nan)
        every = dict(
            zip([f"{by}_{of}" for by in get_args(By) for of in KINDS], similarity, strict=True)
        )
        value = every[f"{self.by}_{self.of}"].clone()
        warn_duplicates(
            self.name, self.layout, value, null, "a scale" if self.by == "cosine" else "a basis"
        )
        half = Z95 * variance.sqrt()
        return {
            "value": value,
            "null": null,
            "null_low": null - half,
            "null_high": null + half,
            **every,
        }

    def _stacked(
        self, weights: Sequence[HeadWeights], sites: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        """The four matrices (H, D, C) of all heads of a group, in float64."""
        for name, parts in zip(
            HeadWeights._fields, zip(*(weights[s] for s in sites), strict=True), strict=True
        ):
            facts = [f"W_{name} of (width, channels) = {tuple(part.shape[1:])}" for part in parts]
            refuse_unlike_sites(self.name, self.pairs, [self.layout.sites[s] for s in sites], facts)
        return tuple(
            torch.cat(matrices).double()
            for matrices in zip(*(weights[s] for s in sites), strict=True)
        )


def compare(weights: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(6, H, H) cosines and (6, H, H) overlaps in the order of KINDS; (2, 12, H, H) mean and variance by chance.

    weights: query, key, value, output, each (H, D, C). Chance turns the stream of b's rows at
    random, so it is exact.
    """
    width = max(
        w.shape[1] for w in weights
    )  # where values are wider than keys, these get rows of 0
    weights = tuple(pad(w, (0, 0, 0, width - w.shape[1])) for w in weights)
    own_4HDD = torch.stack([w @ w.mT for w in weights])
    eigenvalue, direction = torch.linalg.eigh(own_4HDD)
    spanned = eigenvalue > _RANK * eigenvalue.sum(-1, keepdim=True)
    whiten_4HDD = direction * torch.where(spanned, eigenvalue, torch.inf).rsqrt()[..., None, :]

    heads = len(weights[0])
    inner = own_4HDD.new_zeros(6, heads, heads)  # Frobenius inner products
    angles = own_4HDD.new_zeros(4, heads, heads)  # sums of squared cosines of principal angles
    for a in range(
        heads
    ):  # one head against all at a time: all pairs at once would take (H D)^2 numbers
        gram_4HDD = torch.stack([w[a] @ w.mT for w in weights])
        inner[:4, a] = gram_4HDD.diagonal(dim1=-2, dim2=-1).sum(-1)
        inner[4, a] = (gram_4HDD[0] * gram_4HDD[1]).sum((-2, -1))
        inner[5, a] = (gram_4HDD[2] * gram_4HDD[3]).sum((-2, -1))
        angles[:, a] = (whiten_4HDD[:, a, None].mT @ gram_4HDD @ whiten_4HDD).square().sum((-2, -1))

    size_6H = inner.diagonal(dim1=-2, dim2=-1)
    scale_6H = torch.where(size_6H > 0, size_6H, torch.inf).rsqrt()
    scale_6HH = scale_6H[:, :, None] * scale_6H[:, None]
    rank_4H = spanned.sum(-1).double()
    p, q = rank_4H[:, :, None], rank_4H[:, None]
    fewer = torch.minimum(p, q).clamp(min=1)
    overlap_4HH = angles / fewer

    c = torch.tensor([w.shape[2] for w in weights], dtype=torch.float64, device=p.device)[
        :, None, None
    ]
    turned_4HH = torch.einsum("khij,kgji->khg", own_4HDD, own_4HDD) / c * scale_6HH[:4].square()
    turned_2HH = (1 / torch.stack([c[0] * c[1], c[2] * c[3]])).expand(2, heads, heads)
    mean_4HH = p * q / c / fewer
    variance_4HH = 2 * p * q * (c - p) * (c - q) / (c**2 * (c - 1) * (c + 2)) / fewer**2
    square_4HH = variance_4HH + mean_4HH**2
    mean_6HH = _with_circuits(mean_4HH)
    mean = torch.cat([torch.zeros_like(inner), mean_6HH])
    variance = torch.cat([turned_4HH, turned_2HH, _with_circuits(square_4HH) - mean_6HH**2])
    return inner * scale_6HH, _with_circuits(overlap_4HH), torch.stack([mean, variance])


def _with_circuits(of_matrices: Tensor) -> Tensor:
    """(4, ...) -> (6, ...): what belongs to a circuit is the product over its two independent matrices."""
    query, key, value, output = of_matrices
    return torch.cat([of_matrices, torch.stack([query * key, value * output])])
