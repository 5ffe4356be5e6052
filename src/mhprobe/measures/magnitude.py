"""Magnitude: how large the weights are that go with a head or a neuron.

Li et al., 2017, arXiv 1608.08710, take the L1 norm of a filter. Here it is the L2 norm of all
weights that a removal takes, biases left out, as the groups of Fang et al., 2023, "DepGraph", arXiv
2301.12900. Layer scale and gate count: a head that writes nothing, such as one whose gate is
closed, has 0.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.heads import KINDS, HeadWeights
from mhprobe.measures.base import OfWeights, sums


class Magnitude(OfWeights):
    """L2 norm of the weights of a head or a neuron; no image changes it.

    Columns, (A,): value, larger weights are larger.
    """

    fooled_by = "by definition: large weights whose input is small, or whose output others cancel"
    of_units = frozenset(KINDS)
    label = "magnitude: L2 norm of the weights"
    larger = "the head's weights are larger"

    square: Tensor = sums("A")  # of the weights

    def look(self, weights: Sequence[HeadWeights]) -> None:
        for number, parts in enumerate(weights):
            square_H = torch.stack([part.double().square().sum((1, 2)) for part in parts]).sum(0)
            self.square[self.layout.span(number)] += square_H * parts.output.flatten(1).any(1)

    def finish(self) -> dict[str, Tensor]:
        return {"value": (self.square / self.models).sqrt()}
