"""One multiplier xi_h on every head's output, for good: what changes is its value, never the hooks.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, eq. 2: MHAtt(x) = sum_h xi_h Att_h(x). Because a head owns a slice of
the channels that enter the output projection, xi_h is a product on that slice just before the projection.

The hooks are bound methods of the gates (not closures), so that a deep copy or a pickle of the model takes its own
gates along. A gate of one leaves every bit as it was.

Shapes: B images (or windows), T tokens, A heads of all sites.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout


class HeadGates(nn.Module):
    """Gates on every head of ``model``, installed at construction.

    values: (A,) float32, the factor on each head's output: 1 leaves the head as it is, 0 switches it off.
        Edit them in place; compiled models obey without a new compilation.
    learnable: whether the optimizer may train ``values``.
    """

    def __init__(self, model: nn.Module, layout: HeadLayout, learnable: bool = False) -> None:
        super().__init__()
        self.layout = layout
        first = next(model.parameters())
        self.values = nn.Parameter(torch.ones(layout.num_heads, device=first.device), requires_grad=learnable)
        for number, site in enumerate(layout.sites):
            projection = model.get_submodule(f"{site.name}.proj")
            projection.register_forward_pre_hook(functools.partial(_apply, self, number))

    def forward(self, number: int, z: Tensor) -> Tensor:
        """Gate one site's heads: (..., H * D) -> (..., H * D)."""
        site = self.layout.sites[number]
        if z.shape[-1] != site.channels:
            raise UserError(
                f"{site.name}: projection input has {z.shape[-1]} channels, expected num_heads * head_dim = "
                f"{site.num_heads} * {site.head_dim} = {site.channels}. Was the block pruned after "
                f"attach()? Attach again."
            )
        gate = self.values[self.layout.span(number)].to(z.dtype)
        return z * gate.repeat_interleave(site.head_dim)

    @contextlib.contextmanager
    def masked(self, mask: Tensor) -> Iterator[None]:
        """Switch heads off for a while: ``mask`` is (A,) bool, True means off. Nests; restores on the way out."""
        mask = self.layout.mask(mask)
        before = self.values.detach().clone()
        with torch.no_grad():
            self.values[mask.to(self.values.device)] = 0.0
        try:
            yield
        finally:
            with torch.no_grad():
                self.values.copy_(before)

    def get_extra_state(self) -> dict[str, list]:
        """The layout in plain words, so that gates are never loaded into another model's heads."""
        return {"sites": [[site.name, site.num_heads, site.head_dim] for site in self.layout.sites]}

    def set_extra_state(self, state: dict[str, list]) -> None:
        expected = self.get_extra_state()["sites"]
        got = [list(site) for site in state["sites"]]
        if got != expected:
            different = next((pair for pair in zip(expected, got, strict=False) if pair[0] != pair[1]), None)
            where = (
                f"{len(expected)} sites, got {len(got)}"
                if different is None
                else f"[name, heads, head_dim] = {different[0]}, got {different[1]}"
            )
            raise UserError(
                f"gates: made for another layout: expected {where}. Load them into the model they came from."
            )


def _apply(gates: HeadGates, number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (gates(number, args[0]), *args[1:])


def find_gates(model: nn.Module) -> HeadGates | None:
    """The gates that ``attach`` installed on ``model`` or on a module inside it; None if there are none."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, functools.partial) and hook.args and isinstance(hook.args[0], HeadGates):
                return hook.args[0]
    return None


def gates_of(model: nn.Module) -> HeadGates:
    """Like ``find_gates``, but a model without gates is an error."""
    gates = find_gates(model)
    if gates is None:
        raise UserError(f"{type(model).__name__} has no head gates: call mhprobe.attach(model) first.")
    return gates
