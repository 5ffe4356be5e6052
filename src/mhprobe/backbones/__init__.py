"""Which models are supported, and where their heads are. One file per family; families are found by looking here."""

from __future__ import annotations

import importlib
import pkgutil

from torch import nn

from mhprobe.backbones.base import Family, build, input_spec
from mhprobe.errors import UserError
from mhprobe.gates import HeadGates, find_gates
from mhprobe.heads import HeadLayout

__all__ = ["Family", "attach", "build", "families", "input_spec", "layout_of"]


def families() -> tuple[type[Family], ...]:
    """Every Family defined in a module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(Family.__subclasses__())


def layout_of(model: nn.Module) -> HeadLayout:
    """The heads of a timm model. A model outside the supported families is refused by name and reason."""
    for family in families():
        if family.claims(model):
            return HeadLayout(sites=tuple(family.sites(model)), blocks=tuple(family.blocks(model)))
    supported = ", ".join(family.title for family in families())
    raise UserError(
        f"{type(model).__name__}: no supported family knows where its heads are; supported: {supported}. "
        f"To add one, see 'A backbone family' in CONTRIBUTING.md."
    )


def attach(model: nn.Module, learnable: bool = False) -> HeadGates:
    """Put a gate on every head of ``model``, once; a second call returns the gates that are there.

    Returns HeadGates: ``.layout``, ``.values`` (A,) all ones (which leave the model's output bit-identical).
    Raises UserError for an unsupported model, with the reason.
    """
    gates = find_gates(model)
    if gates is None:
        return HeadGates(model, layout_of(model), learnable)
    gates.values.requires_grad_(learnable)
    return gates
