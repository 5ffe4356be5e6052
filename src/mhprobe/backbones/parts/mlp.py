"""The neurons of timm's MLPs: channels of what enters the last linear layer, ``fc2``, each a unit of width 1.

In a gated MLP (GLU, SwiGLU) the product of two halves enters ``fc2``, so a neuron is a row in each half of ``fc1``. A
norm in front of ``fc2`` (scale_mlp of EVA-02) mixes neurons: such an MLP is refused, as any that is not listed here.

Shapes: N neurons of one MLP, C channels of the residual stream, R rows of the first linear layers per neuron (1 or 2).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from timm.layers import GluMlp, Mlp, SwiGLU
from torch import Tensor, nn

from mhprobe.backbones.parts.attention import keep_columns, keep_rows
from mhprobe.errors import HeadsMixed
from mhprobe.heads import HeadSite

_FIRST: dict[type[nn.Module], tuple[str, ...]] = {Mlp: ("fc1",), GluMlp: ("fc1",), SwiGLU: ("fc1_g", "fc1_x")}


def neurons(mlp: Any, site: HeadSite) -> Iterator[HeadSite]:
    """The site of an MLP's neurons, where it still has some. site: the MLP's name and place.

    UserError for an MLP whose neurons are not private to it.
    """
    if type(mlp) not in _FIRST or not isinstance(mlp.fc2, nn.Linear):
        known = ", ".join(kind.__name__ for kind in _FIRST)
        raise HeadsMixed(
            f"{site.name} is a {type(mlp).__name__}, expected one of timm's {known} of linear layers: nobody has "
            f"looked where its neurons are. Its heads can be taken alone: units={{'head'}}."
        )
    if not isinstance(mlp.norm, nn.Identity):
        raise HeadsMixed(
            f"{site.name}.norm is a {type(mlp.norm).__name__} between the neurons and fc2 (scale_mlp): it mixes "
            f"neurons, so masking one changes the others. Its heads can be taken alone: units={{'head'}}."
        )
    if mlp.fc2.in_features:
        yield dataclasses.replace(site, num_heads=mlp.fc2.in_features, kind="neuron")


def rows_of(mlp: Any) -> Tensor:
    """(N, R, C) the rows of the first linear layers that make each neuron."""
    count = mlp.fc2.in_features
    halves = [getattr(mlp, name).weight.detach().unflatten(0, (-1, count)) for name in _FIRST[type(mlp)]]
    return torch.cat(halves).transpose(0, 1)


def keep_neurons(mlp: Any, keep: Sequence[int]) -> None:
    """Cut an MLP down to the neurons ``keep``, in place. An MLP without any gives the bias of ``fc2``."""
    channels, count = torch.tensor(keep, dtype=torch.long), mlp.fc2.in_features
    for name in _FIRST[type(mlp)]:
        first = getattr(mlp, name)
        keep_rows(first, torch.cat([channels + start for start in range(0, first.out_features, count)]))
    keep_columns(mlp.fc2, channels)
