"""Taps: hooks that record the tensors at a model's seams and blocks in one forward pass, and their gradients.

A head's output is read before its gate, the slope after it, so that a masked head still has one. A
graph begins at the first tap that needs it, because weights are frozen.

Shapes: rows are images (or images x windows, image-major).
"""

import contextlib
import functools
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, family_of
from mhprobe.errors import UserError
from mhprobe.gates.base import GateHook, gates_of
from mhprobe.heads import HeadLayout, Shown, Stream, Weights
from mhprobe.heads.attention import Paired
from mhprobe.recording.meetings import Meetings, meets_pairs, refuse_unmet
from mhprobe.recording.outputs import slopes_along
from mhprobe.recording.recomputing import recomputing

Args = tuple[Tensor, ...]
SLOPES = frozenset({"grad", "attn_grad", "row_slopes"})


class Taps(contextlib.ExitStack):
    """``with Taps(model, layout, needs) as taps: model(images)``.

    heads: per site (rows, T, H * D), before the gate. attn: per site (rows, H, queries, keys).
    read_rows: per site its attention weights, to be read row by row. stream: per block. Raises UserError
    if ``needs`` asks for attention weights or a residual stream that the model does not have, and
    in a wrapper that does not run its backbone once, on the whole batch.
    """

    def __init__(self, model: nn.Module, layout: HeadLayout, needs: Collection[str]) -> None:
        super().__init__()
        self.model, self.backbone, self.layout = model, backbone_of(model), layout
        self.batch = 0  # images that the model was given
        self.family = family_of(self.backbone)
        self.needs = frozenset(needs) | ({"stream"} if "direct" in needs else set())
        if "stream" in self.needs and not layout.blocks:
            raise UserError(
                f"{type(self.backbone).__name__}: its residual stream cannot be recorded, for "
                "mhprobe does not know "
                f"its blocks. Measures of heads work."
            )
        self.heads: list[Tensor] = [torch.empty(0)] * len(layout.sites)
        self._gated = list(self.heads)
        if "row_slopes" in self.needs and "attn" in self.needs:
            self.needs |= {"attn_grad"}  # matrices are there anyway
        sites = len(layout.of("head").sites)
        self.attn = self.heads[:sites] if self.needs & {"attn", "attn_grad"} else []
        self.by_rows = bool(self.needs & {"rows", "row_slopes"})
        # weights of the sites that are met as queries and keys, and of the others
        self._pairs: dict[int, Paired] = {}
        self._shown: dict[int, Tensor] = {}
        self._results: dict[int, Tensor] = {}  # of attention, of the former
        self._slopes: dict[int, Tensor] = {}
        self._stream: list[dict[str, Tensor]] = (
            [{} for _ in layout.blocks] if "stream" in self.needs else []
        )

    def __enter__(self) -> "Taps":
        super().__enter__()
        try:
            for module in (self.model, self.backbone):
                self.enter_context(module.register_forward_pre_hook(self._enters_model))
            self._tap_sites()
            self._tap_blocks()
            if "row_slopes" in self.needs:
                self.enter_context(recomputing(self.backbone))
        except BaseException:
            self.close()
            raise
        return self

    @property
    def stream(self) -> tuple[Stream, ...] | None:
        return tuple(Stream(**places) for places in self._stream) if self._stream else None

    def slopes(
        self, of: Tensor, again: bool = False
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]:
        """Slopes of the scalar ``of`` along gated heads if they were asked, and along attention or None.

        again: keep the graph. Slopes along rows are kept with them.
        """
        gated = self._gated if "grad" in self.needs else []
        attn = self.attn if "attn_grad" in self.needs else []
        rows = {**self._results, **self._shown} if "row_slopes" in self.needs else {}
        gradients = iter(slopes_along(of, [*gated, *attn, *rows.values()], again))
        of_heads = tuple(next(gradients) for _ in gated)
        of_attn = tuple(next(gradients) for _ in attn)
        self._slopes = {number: next(gradients) for number in rows} or dict(enumerate(of_attn))
        return of_heads, of_attn or None

    def read_rows(self) -> tuple[Weights, ...] | None:
        """Attention weights of each site, behind the pass; None if they were not asked.

        Raises UserError for a site whose weights did not come by.
        """
        if not self.by_rows:
            return None
        shown = dict(enumerate(self.attn)) or self._shown
        layout = self.layout.of("head")
        met = [number in self._pairs or number in shown for number in range(len(layout.sites))]
        refuse_unmet(layout, met)
        return tuple(
            self._pairs[number].sloped(self._slopes.get(number))
            if number in self._pairs
            else Shown(shown[number], self._slopes.get(number))
            for number in range(len(layout.sites))
        )

    def _tap_rows(self) -> None:
        """Meet the queries and keys of sites that have more weights than those, and the weights of others."""
        seams = {
            number: self.family.seam(self.backbone, site)
            for number, site in enumerate(self.layout.sites)
            if site.kind == "head"
        }
        pairs = {
            number: seam
            for number, seam in seams.items()
            if self.layout.sites[number].larger_than_pairs and meets_pairs(seam)
        }
        sloped = "row_slopes" in self.needs
        through = self._result if sloped else None
        self.enter_context(Meetings(self.layout, pairs, self._meets, through))
        for number, seam in seams.items():
            if number not in pairs:
                keep = functools.partial(_keeps, self._shown, number, sloped)
                self.enter_context(seam.watched(keep))

    def _meets(self, number: int, weights: Weights) -> None:
        if number in self._pairs or number in self._shown:
            raise self.several("twice or more for one batch")
        if isinstance(weights, Paired):
            self._pairs[number] = weights.kept("row_slopes" in self.needs)
        else:
            self._shown[number] = weights.parts()[0]

    def _result(self, number: int, result: Tensor) -> Tensor:
        """Begin a graph at the result of attention, if nothing upstream is trainable."""
        begun = result if result.requires_grad else result.detach().requires_grad_()
        self._results[number] = begun
        return begun

    def _tap_sites(self) -> None:
        if self.by_rows and not self.attn:
            self._tap_rows()
        for number, site in enumerate(self.layout.sites):
            seam, bind = self.family.seam(self.backbone, site), functools.partial
            strange = [
                hook
                for hook in seam.point._forward_pre_hooks.values()
                if not isinstance(hook, GateHook)
            ]
            before = bind(self._before_gate, number)
            self.enter_context(seam.point.register_forward_pre_hook(before, prepend=True))
            if strange:
                replaced = bind(self._refuse_replaced, number, strange[-1])
                self.enter_context(seam.point.register_forward_pre_hook(replaced))
            if "grad" in self.needs:
                after = bind(_keeps, self._gated, number, True)
                self.enter_context(seam.point.register_forward_pre_hook(after))
            if self.attn and site.kind == "head":
                self.enter_context(
                    seam.watched(bind(_keeps, self.attn, number, "attn_grad" in self.needs))
                )

    def _tap_blocks(self) -> None:
        for block, places in zip(self.layout.blocks, self._stream, strict=False):
            module, middle = (
                self.backbone.get_submodule(block.name),
                self.backbone.get_submodule(block.middle),
            )
            self.enter_context(
                module.register_forward_pre_hook(functools.partial(_enters, places, "before"))
            )
            self.enter_context(
                middle.register_forward_pre_hook(functools.partial(_enters, places, "middle"))
            )
            self.enter_context(module.register_forward_hook(functools.partial(_leaves, places)))

    def _enters_model(self, module: nn.Module, args: Args) -> None:
        images = args[0] if args and isinstance(args[0], Tensor) else None
        count = self.batch if images is None else len(images)
        self.batch = self.batch or count
        if count != self.batch:
            raise self.several(f"on {count} images for a batch of {self.batch}")
        if (
            module is self.backbone and images is not None and images.dim() == 4
        ):  # a wrapper may have resized them
            for site in self.layout.sites:
                site.refuse_other_form(images.shape[2:], "record")

    def several(self, runs: str) -> UserError:
        """Return the error for a wrapper that runs its backbone otherwise than once."""
        return UserError(
            f"record: {type(self.model).__name__} runs its backbone {runs}, expected one run on "
            "the batch as it is, "
            f"because it is unclear which run to look at. Give the backbone itself."
        )

    def _before_gate(self, number: int, _module: nn.Module, args: Args) -> None:
        if self.heads[number].numel():
            raise self.several("twice or more for one batch")
        self.heads[number] = args[0].detach()

    def _refuse_replaced(self, number: int, hook: Any, module: nn.Module, args: Args) -> None:
        """Raise UserError if the user's hook changes what the gates let through."""
        gates, site = gates_of(self.backbone), self.layout.sites[number]
        there = next(at for at, of in enumerate(gates.layout.sites) if of.name == site.name)
        if torch.equal(args[0], gates(there, self.heads[number], module.training)):
            return
        name = getattr(hook, "__qualname__", type(hook).__name__)
        raise UserError(
            f"record: {site.name}: the forward pre-hook {name} on its projection replaces what "
            "its heads give, so that neither masks nor slopes of heads say what they do. Remove the "
            "hook first (handle.remove())."
        )


def _enters(places: dict[str, Tensor], place: str, _module: nn.Module, args: Args) -> None:
    places[place] = args[0].detach().flatten(1, -2)


def _leaves(places: dict[str, Tensor], _module: nn.Module, _args: Args, out: Any) -> None:
    output = (
        out[0] if isinstance(out, tuple) else out
    )  # Hugging Face's may give back their weights beside it
    places["after"] = output.detach().flatten(1, -2)


def _keeps(
    into: list[Tensor] | dict[int, Tensor],
    number: int,
    wanted: bool,
    _module: nn.Module,
    args: Args,
) -> Args:
    """Keep a tensor, in a graph, which begins here if nothing upstream is trainable."""
    into[number] = args[0] if args[0].requires_grad else args[0].detach().requires_grad_(wanted)
    return (into[number], *args[1:])
