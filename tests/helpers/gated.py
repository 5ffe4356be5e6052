"""Gates as training and pruning leave them: heads closed for good, fractions, learned ones of which some are shut."""

from __future__ import annotations

import torch
from torch import nn

import mhprobe
from mhprobe.gates.hard_concrete import HardConcreteGates


def closed(model: nn.Module) -> None:
    """Two heads and a whole layer."""
    gates = mhprobe.attach(model)
    mask = torch.zeros(gates.layout.num_heads, dtype=torch.bool)
    mask[[0, 1]] = True
    mask[gates.layout.span(1)] = True
    gates.close(mask)


@torch.no_grad()
def fractional(model: nn.Module) -> None:
    gates = mhprobe.attach(model)
    gates.values.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    gates.values[0] = 0


@torch.no_grad()
def learned(model: nn.Module) -> None:
    gates = mhprobe.backbones.attach(model, make=HardConcreteGates)
    gates.log_alpha.copy_(torch.linspace(-4, 4, gates.layout.num_heads))
    assert (gates.effective() == 0).sum() > 1 and (gates.effective() % 1 != 0).any()


STATES = {"closed": closed, "fractional": fractional, "learned": learned}
