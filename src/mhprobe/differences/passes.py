"""One pass of a network over a batch, as two networks are compared by: streams, heads, neurons, attention, logits.

A pass is natural, or it is *fed*: each block, and each block's MLP, gets the residual stream of
another network in place of its own. What a unit then does otherwise is its own doing. A pass can
also *borrow* the units of another network: its projections get the other's heads and neurons.

Shapes: B images, T tokens, C channels of the stream, R rows (images x windows), H heads of a site,
D head width, N neurons of an MLP, q chosen queries, K keys.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, layout_of
from mhprobe.backbones.base import Seam
from mhprobe.data.draws import evenly_spread
from mhprobe.errors import UserError
from mhprobe.heads import KINDS, HeadLayout, Stream, Weights
from mhprobe.recording.checks import check_batch, check_model, refuse_checkpointing, sized
from mhprobe.recording.meetings import Meetings
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.rows import Streamed
from mhprobe.recording.state import inspecting, usable
from mhprobe.recording.taps import Args

QUERIES = 64  # of a window: more rows of attention would say little else


class Pass(NamedTuple):
    """One pass over a batch.

    arrived: per block (B, T, C), the stream that came to it. streams: per block what it was given
    and made of it; in a fed pass ``before`` is what it was fed, ``after`` what it made. heads: per
    site (R, T, H * D) as the projection sees them. neurons: per MLP (B, T, N); empty where they are
    not known. attention: per site (R, H, q, K); None where it is not to be seen. logits: (B,
    classes), in a fed pass those of the last stream that was fed.
    """

    arrived: tuple[Tensor, ...]
    streams: tuple[Stream, ...]
    heads: tuple[Tensor, ...]
    neurons: tuple[Tensor, ...]
    attention: tuple[Tensor | None, ...]
    logits: Tensor


def units_of(model: nn.Module) -> tuple[HeadLayout, str]:
    """Return the layout of a network's heads and neurons, and why it has no neurons, or "".

    UserError for a network of no supported family, one of texts, and one whose blocks are unknown.
    """
    backbone = backbone_of(model)
    attach(model)
    try:
        layout, reason = layout_of(backbone, KINDS), ""
    except UserError as error:
        layout, reason = layout_of(backbone, {"head"}), f"Neurons are not compared: {error}"
    if any(site.line for site in layout.sites):
        raise UserError(
            f"diff: expected networks for images, got {type(model).__name__}, which takes text."
        )
    if not layout.blocks:
        raise UserError(
            f"diff: {type(backbone).__name__}: mhprobe does not know its residual blocks, so errors "
            "of its own cannot be told from inherited ones."
        )
    return layout, reason


def chosen_queries(queries: int) -> Tensor:
    """(q,) at most ``QUERIES`` of the queries of a window: the first, a class token's, and others evenly."""
    if queries <= QUERIES:
        return torch.arange(queries)
    return torch.tensor([0, *(1 + query for query in evenly_spread(QUERIES - 1, queries - 1))])


def run(
    model: nn.Module,
    layout: HeadLayout,
    images: Tensor,
    fed: Pass | None = None,
    borrowed: dict[str, Tensor] | None = None,
    attention: bool = True,
) -> Pass:
    """Run a network on a batch.

    images: (B, 3, height, width), normalised. fed: a pass whose streams each block is given.
    borrowed: by the site's name what its projection gets, (R, T, H * D) or (B, T, N). attention:
    False leaves it out.
    Raises UserError for images of another size, and streams of another shape than the network's.
    """
    check_model(model)
    refuse_checkpointing(model)
    images = images.to(next(model.parameters()))
    check_batch(model, images, None, layout)
    watch = _Watch(model, layout, fed, borrowed or {}, attention)
    with inspecting(model, gradients=False, freeze=False), watch, sized(model, images):
        logits = logits_of(model(usable(images)), model).detach()
    return watch.handed(logits)


class _Watch(Streamed):
    """Taps of one pass. rows: per site of heads its attention. places: per block its streams."""

    def __init__(
        self,
        model: nn.Module,
        layout: HeadLayout,
        fed: Pass | None,
        borrowed: dict[str, Tensor],
        attention: bool,
    ) -> None:
        super().__init__(model, layout, self._keep_rows)
        self.fed, self.borrowed, self.seen = fed, borrowed, attention
        self.rows: list[Tensor | None] = [None for site in layout.sites if site.kind == "head"]
        self.places: list[dict[str, Tensor]] = [{} for _ in layout.blocks]

    def handed(self, logits: Tensor) -> Pass:
        """Return the pass, and let go of it and of what was fed: taps refer to themselves, so they outlive it."""
        sites = len(self.rows)
        found = Pass(
            tuple(places["arrived"] for places in self.places),
            tuple(Stream(*(places[of] for of in Stream._fields)) for places in self.places),
            tuple(self.heads[:sites]),
            tuple(self.heads[sites:]),
            tuple(self.rows),
            logits,
        )
        self.fed, self.borrowed = None, {}
        self.rows, self.places, self.heads = [], [], []
        return found

    def _keep_rows(self, number: int, weights: Weights) -> None:
        queries = chosen_queries(weights.shape[2]).to(weights.device)
        rows = torch.arange(weights.shape[0], device=weights.device)
        self.rows[number] = weights.at(rows, queries)

    def _tap_sites(self) -> None:
        watched: dict[int, Seam] = {}
        for number, site in enumerate(self.layout.sites):
            seam = self.family.seam(self.backbone, site)
            keep = functools.partial(self._before_gate, number)
            self.enter_context(seam.point.register_forward_pre_hook(keep, prepend=True))
            if site.name in self.borrowed:
                lend = functools.partial(_lends, self.borrowed[site.name])
                self.enter_context(seam.point.register_forward_pre_hook(lend, prepend=True))
            if self.seen and site.kind == "head" and seam.weights is not None:
                watched[number] = seam
        self.enter_context(Meetings(self.layout, watched, self.meets))

    def _tap_blocks(self) -> None:
        for number, block in enumerate(self.layout.blocks):
            module = self.backbone.get_submodule(block.name)
            middle = self.backbone.get_submodule(block.middle)
            bind, place = functools.partial, self.places[number]
            given = None if self.fed is None else self.fed.streams[number]
            self.enter_context(
                module.register_forward_pre_hook(bind(_enters, place, "arrived", "before", given))
            )
            self.enter_context(
                middle.register_forward_pre_hook(bind(_enters, place, "middle", "middle", given))
            )
            self.enter_context(module.register_forward_hook(bind(_leaves, place, given)))


def _enters(
    places: dict[str, Tensor],
    came: str,
    of: str,
    given: Stream | None,
    module: nn.Module,
    args: Args,
) -> Args:
    """Keep the stream that comes to a module, and replace it by what it is fed."""
    places[came] = args[0].detach().flatten(1, -2)
    if given is None:
        places[of] = places[came]
        return args
    fed = _shaped(getattr(given, of), args[0], places[came])
    if of == "before":
        places["before"] = fed.flatten(1, -2)
    return (fed, *args[1:])


def _leaves(
    places: dict[str, Tensor], given: Stream | None, _module: nn.Module, _args: Args, out: Any
) -> Any:
    """Keep the stream that a block has made, and hand on the one that is fed."""
    output = out[0] if isinstance(out, tuple) else out
    places["after"] = output.detach().flatten(1, -2)
    if given is None:
        return out
    fed = _shaped(given.after, output, places["after"])
    return (fed, *out[1:]) if isinstance(out, tuple) else fed


def _lends(rows: Tensor, _module: nn.Module, args: Args) -> Args:
    return (rows.to(args[0]).reshape(args[0].shape), *args[1:])


def _shaped(fed: Tensor, like: Tensor, flat: Tensor) -> Tensor:
    """A (B, T, C) stream in the form of ``like``. UserError for other numbers of tokens or channels."""
    if fed.shape != flat.shape:
        raise UserError(
            f"diff: expected the same tokens and channels in both networks, got {tuple(fed.shape[1:])} "
            f"and {tuple(flat.shape[1:])}. Give two networks of one architecture and one image size."
        )
    return fed.to(like).reshape(like.shape)


def bytes_of(passes: Sequence[Pass]) -> int:
    """Return the bytes that passes hold."""
    tensors = [tensor for one in passes for part in one for tensor in _flat(part)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _flat(part: Any) -> list[Tensor]:
    if isinstance(part, Tensor):
        return [part]
    return [] if part is None else [tensor for inner in part for tensor in _flat(inner)]
