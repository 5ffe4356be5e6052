"""Which models are supported, and where their heads are. One file per family; families are found by looking here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import torch
from torch import nn

from mhprobe.backbones.base import Family, build, input_spec
from mhprobe.errors import UserError
from mhprobe.gates import HeadGates, find_gates, remove_gates
from mhprobe.heads import HeadLayout

__all__ = ["Family", "attach", "build", "families", "family_of", "input_spec", "layout_of"]


def families() -> tuple[type[Family], ...]:
    """Every Family defined in a module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(Family.__subclasses__())


def family_of(model: nn.Module) -> type[Family]:
    """The family a timm model belongs to. A model outside the supported ones is refused by name."""
    for family in families():
        if family.claims(model):
            return family
    for name, part in model.named_modules():
        if name and any(family.claims(part) for family in families()):
            raise UserError(
                f"{type(model).__name__}: it wraps a supported {type(part).__name__}; pass model.{name} instead."
            )
    supported = ", ".join(family.title for family in families())
    raise UserError(
        f"{type(model).__module__}.{type(model).__name__}: no supported family knows where its heads are; supported: "
        f"{supported}. "
        f"To add one, see 'A backbone family' in CONTRIBUTING.md."
    )


def layout_of(model: nn.Module) -> HeadLayout:
    """The heads of a timm model. A model outside the supported families is refused by name and reason."""
    family = family_of(model)
    return HeadLayout(sites=tuple(family.sites(model)), blocks=tuple(family.blocks(model)))


def attach(
    model: nn.Module, learnable: bool = False, make: Callable[[nn.Module, HeadLayout], HeadGates] | None = None
) -> HeadGates:
    """Put a gate on every head of ``model``, once; a second call returns the gates that are there.

    make: makes the gates from (model, layout), e.g. ``HardConcreteGates``. Gates that are there already are replaced,
        and their values kept: a head that was off stays off.

    Returns HeadGates: ``.layout``, ``.values`` (A,) all ones (which leave the model's output bit-identical).
    Raises UserError for an unsupported model, with the reason.
    """
    if not isinstance(model, nn.Module):
        raise UserError(
            f"attach: expected a model, e.g. timm.create_model(name, pretrained=True), got {type(model).__name__} "
            f"{str(model)[:60]!r}."
        )
    gates = find_gates(model)
    if gates is not None and make is None:
        gates.values.requires_grad_(learnable)
        return gates
    remove_gates(model)
    made = HeadGates(model, layout_of(model), learnable) if make is None else make(model, layout_of(model))
    if gates is not None:
        with torch.no_grad():
            made.values.copy_(gates.effective())
    return made
