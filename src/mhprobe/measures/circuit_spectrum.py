"""Does a head make like look at like? Singular values and directions of its circuits; no image is needed.

A head scores query token x and key token y by x W_QK y, W_QK = W_Q^T W_K (over sqrt(D)), and writes
x W_OV of what it looks at, W_OV = W_V^T W_O (Elhage et al., 2021). In the singular value
decomposition W = sum_n s_n u_n v_n^T tokens
along u_n look at tokens along v_n: at like ones if u_n and v_n are the same direction (Pan, Philip,
Xie & Schwartz, 2024, arXiv 2405.14880). The mean of their cosines weighted by s_n is trace(W) /
(sum of s_n). If one side is turned at random its mean is 0, its standard deviation sqrt(sum s_n^2)
/ (sqrt(C) sum s_n).

With W_Q^T = Q_a R_a and W_K^T = Q_b R_b the modes of W are those of R_a R_b^T, D x D. Tokens are
those behind the block's norm. Biases, rotations and norms of queries and keys are left out.
Shapes: C channels of the residual stream, K modes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadWeights
from mhprobe.measures.base import Meaning, OfWeights, sums
from mhprobe.stats.significance import Z95

Circuit = Literal["qk", "ov"]
CIRCUITS = get_args(Circuit)


class CircuitSpectrum(OfWeights):
    """Mean cosine of a circuit's left and right singular vectors, weighted by its singular values.

    of: circuit of value: "qk", from query to key, or "ov", from what is read to what is written.

    Columns, (A,): value, in [-1, 1]: larger, like looks at like ("ov": the head writes what it
    reads), below 0 at the opposite; 0 for a head without weights. null: 0, of unrelated directions,
    with null_low and null_high, between which 95 % of random ones lie (normal approximation). qk,
    ov: value of either circuit. rank_qk, rank_ov: effective number of modes, exp(entropy of the
    shares of s_n), 1 to D. copying: sum of W_OV's eigenvalues over the sum of their sizes, in [-1,
    1]; 1: what the head reads comes out with its sign (Elhage et al.). singular, cosine: (A, K) of
    the circuit ``of``, largest first, NaN behind the last mode. Raises UserError if a head writes
    into a stream of another width than it reads, or if ``of`` is "qk" and a head has no queries and
    keys; with "ov" its qk and rank_qk are 0.
    """

    fooled_by = "by definition: a head that looks where its biases or positions say, whatever its weights tie together"
    larger = "like looks at like (of ov: the head writes what it reads); below 0 at the opposite"
    also = ("modes",)
    along: ClassVar[Mapping[str, Meaning]] = {
        "singular": Meaning(
            "singular value of a mode of the circuit", "the circuit passes more of this mode"
        ),
        "cosine": Meaning(
            "cosine between the two directions of a mode",
            "the mode ties like with like; below 0 with the opposite",
        ),
    }

    modes: Tensor  # (2 circuits, 2, A, K) singular values and cosines,
    eigenvalues: Tensor = sums(2, "A")  # of W_OV, and of their sizes,
    channels: Tensor = sums("A")  # C
    sizes: Tensor = sums(
        2, "A"
    )  # number of modes of each circuit; keys may be narrower than values

    def __init__(self, layout: HeadLayout, of: Circuit = "qk", **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        self.of = of
        self.label = f"{of.upper()}: like with like, mean cosine"
        widest = max(site.head_dim for site in layout.sites)
        self.add_state("modes", torch.zeros(2, 2, layout.num_heads, widest, dtype=torch.float64))
        self.axes = {
            key: [f"mode {number}" for number in range(widest)] for key in ("singular", "cosine")
        }

    def look(self, weights: Sequence[HeadWeights]) -> None:
        for number, (site, of_site) in enumerate(zip(self.layout.sites, weights, strict=True)):
            query, key, value, output = of_site = HeadWeights(
                *(matrix.double() for matrix in of_site)
            )
            for one, other in ((query, key), (value, output)):
                if one.shape[2] != other.shape[2]:
                    raise UserError(
                        f"{self.name}: {site.name} reads {one.shape[2]} channels and scores or "
                        f"writes {other.shape[2]}"
                        ", expected as many: directions of two spaces have no cosine. Leave this "
                        "measure out."
                    )
            if self.of == "qk" and not query.shape[1]:
                raise UserError(
                    f"{self.name}: of=qk: {site.name} has no queries and keys. Use of=ov, or leave "
                    "it out."
                )
            span = self.layout.span(number)
            self.channels[span] = query.shape[2]
            if not all(matrix.isfinite().all() for matrix in of_site):
                self.channels[span] = (
                    torch.nan
                )  # not an error here: other ranks would wait for this one
                continue
            for circuit, (read, write) in enumerate(((query, key), (value, output))):
                self.sizes[circuit, span] = min(read.shape[1:])
                for kind, modes in enumerate(modes_of(read, write)):
                    self.modes[circuit, kind, span, : modes.shape[-1]] = modes
            eigenvalues = torch.linalg.eigvals(output @ value.mT)  # of W_OV, but for zeros
            self.eigenvalues[:, span] = torch.stack(
                [eigenvalues.real.sum(-1), eigenvalues.abs().sum(-1)]
            )

    def finish(self) -> dict[str, Tensor]:
        singular, cosine = (self.modes / self.models).unbind(1)  # each (2, A, K)
        channels, copied, size = self.channels / self.models, *(self.eigenvalues / self.models)
        total = singular.sum(-1)
        circuit = CIRCUITS.index(self.of)
        value = _ratio((singular * cosine).sum(-1), total)
        spread = Z95 * _ratio(singular[circuit].norm(dim=-1), total[circuit]) / channels.sqrt()
        share = _ratio(singular, total[..., None])
        rank = torch.where(total > 0, torch.special.entr(share).sum(-1).exp(), 0)
        absent_AK = (
            torch.arange(singular.shape[-1], device=self.device)
            >= (self.sizes / self.models)[circuit, :, None]
        )
        return {
            "value": value[circuit].clone(),
            "null": torch.zeros_like(spread),
            "null_low": -spread,
            "null_high": spread,
            **dict(zip(CIRCUITS, value, strict=True)),
            **{f"rank_{name}": modes for name, modes in zip(CIRCUITS, rank, strict=True)},
            "copying": _ratio(copied, size),
            "singular": singular[circuit].masked_fill(absent_AK, torch.nan),
            "cosine": cosine[circuit].masked_fill(absent_AK, torch.nan),
        }


def modes_of(read: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """(H, D) singular values of read^T write, (H, D, C) each, falling; cosines of its left with its right vectors."""
    left, inside = torch.linalg.qr(read.mT)
    right, outside = torch.linalg.qr(write.mT)
    u, singular, v = torch.linalg.svd(inside @ outside.mT)
    return singular, ((left @ u) * (right @ v.mT)).sum(1)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, 0 where there is nothing."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1), 0)
