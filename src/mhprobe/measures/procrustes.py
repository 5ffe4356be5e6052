"""Orthogonal Procrustes: the distance of one head's outputs to another's after the best rotation.

Schönemann, 1966, Psychometrika 31:1; as a distance between representations Ding, Denain &
Steinhardt, 2021, arXiv 2108.01661, and Williams et al., 2021, arXiv 2110.14739. Centre both, scale
both to Frobenius norm 1; then min over rotations R of ||X - Y R||_F^2 = 2 - 2 ||X^T Y||_* (nuclear
norm: sum of singular values). The value is the similarity s = ||X^T Y||_*; the distance sqrt(2 - 2
s) is a metric. Ding et al. report 2 - 2 s, its square.
"""

import torch
from torch import Tensor

from mhprobe.measures.parts.moments import Parts
from mhprobe.measures.parts.pairs import PairMeasure


class Procrustes(PairMeasure):
    """Similarity of two heads' outputs after the best rotation of one onto the other.

    Invariant to rotations, offsets and one scale per head; between CKA, which stresses large
    directions more, and CCA, which ignores their size.

    Columns: value (A, A) in [0, 1], 1 for equal up to rotation and scale; distance (A, A) = sqrt(2
    - 2 value), smaller is more alike. Options, other columns, UserError and warnings as in
    PairMeasure.
    """

    fooled_by = "by definition: a large direction in common hides many small ones that are not, less than in cka"
    label = "Procrustes similarity"
    equal_up_to = "a rotation and a scale"

    def finish(self) -> dict[str, Tensor]:
        columns = super().finish()
        return {**columns, "distance": (2 - 2 * columns["value"]).sqrt()}

    def compare(self, heads: Parts) -> dict[str, Tensor]:
        size_H = heads.spectrum.sum(1).sqrt()
        value_HH = heads.between(lambda a, row: torch.linalg.svdvals(row).sum(-1))
        return {"value": (value_HH / torch.outer(size_H, size_H)).clamp(max=1)}
