"""Weights that are stored as length and direction (weight normalisation), as the one tensor that they make.

Salimans & Kingma, 2016, arXiv 1602.07868: a weight is g v / |v|. torch keeps g and v under two pairs
of names, the older one of ``torch.nn.utils.weight_norm`` and that of its parametrizations.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from mhprobe.weights.networks import State, grouped

_PAIRS = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


def normed(state: State, names: Collection[str]) -> tuple[State, list[str]]:
    """Return the state with weights in the place of their lengths and directions, and sentences on them.

    names: of the model's tensors; weights that it has not stay as they are.
    """
    made, parts = State(), set[str]()
    for key, length in state.items():
        for first, second in _PAIRS:
            layer, weight = key.removesuffix(first), f"{key.removesuffix(first)}weight"
            direction = state.get(f"{layer}{second}")
            if layer == key or direction is None or weight not in names or weight in state:
                continue
            made[weight] = _product(length, direction)
            parts |= {key, f"{layer}{second}"}
    if not made:
        return state, []
    said = f"{grouped(made)} is made of length and direction (weight normalisation)"
    others = {name: value for name, value in state.items() if name not in parts}
    return others | made, [said]


def _product(length: Tensor, direction: Tensor) -> Tensor:
    """The weight g v / |v|, where |v| is over the dimensions that g has not."""
    wide = direction.float()
    over = [
        axis for axis in range(wide.dim()) if length.dim() != wide.dim() or length.shape[axis] == 1
    ]
    norm = torch.linalg.vector_norm(wide, dim=over, keepdim=True)
    return length.float() * wide / norm
