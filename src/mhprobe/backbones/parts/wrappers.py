"""Modules around a part of a network: what is inside, and what to call what cannot be looked into.

torch.compile, activation checkpointing and FSDP stand around blocks and pass attributes on, so that
the names of a block's parts stay. An adapter, or a subclass with a forward of its own, may compute
anything.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

# by class: where a wrapper keeps the module that it computes
_INSIDE = {
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}


def unwrapped(module: nn.Module) -> Any:
    """Return the module inside wrappers that compute nothing else; the module itself without any."""
    name = _INSIDE.get(type(module).__name__)
    inside = getattr(module, name, None) if name else None
    return unwrapped(inside) if isinstance(inside, nn.Module) else module


def kind_of(module: nn.Module, among: Iterable[Any]) -> Any:
    """Return the class of ``among`` by whose forward a module computes; None if it has another one.

    Wrappers do not count, nor does a subclass that leaves the forward as it is.
    """
    inner = unwrapped(module)
    for kind in among:
        if type(inner) is kind:
            return kind
    own = "forward" in vars(inner)  # a function in the place of the method
    kinds = [kind for kind in among if isinstance(inner, kind) and not own]
    alike = [kind for kind in kinds if type(inner).forward is kind.forward]
    return max(alike, key=lambda kind: len(kind.__mro__), default=None)


def called(name: str, module: nn.Module, among: Iterable[type]) -> str:
    """Say what a module of an unknown class is, and what to do; "" if nothing more is known."""
    kinds, inner = tuple(among), unwrapped(module)
    kind = type(inner).__name__
    base = next((of for of in kinds if isinstance(inner, of)), None)
    if base is not None:
        return (
            f"{name} is a {kind}, a subclass of timm's {base.__name__} with a forward of its own, "
            "which may do anything with its heads. If it does what timm's does, set its __class__ "
            f"to {base.__name__}; else describe it as a family (CONTRIBUTING.md)."
        )
    inside = next(
        (path for path, part in inner.named_modules() if path and isinstance(part, kinds)), None
    )
    if inside is None:
        return ""
    part = inner.get_submodule(inside)
    return (
        f"{name} is a {kind} around a {type(part).__name__} ({name}.{inside}), and may change what "
        f"goes in or comes out. Put the {type(part).__name__} in its place, or merge what was added "
        "into its weights (LoRA: merge_and_unload) first."
    )
