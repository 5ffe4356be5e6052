"""Chosen rows of attention weights, from queries and keys as they pass: no N x N matrix comes to be.

The model runs as its user set it: fused attention stays fused, and its outputs are bit for bit those
of the plain model. While a block runs, its queries and keys are met at torch's
scaled_dot_product_attention (``Seam.met_at``), and what is asked of softmax(q k^T * scale + mask) is
computed beside it. What is held is one block's queries and keys, and a chunk of its rows. Where
weights pass a module anyway (attention that is not fused, cosine attention), their rows are taken
there. Attention of another kernel (Hugging Face's flash attention) shows its weights as for
``record``: torch's operations take its place for this pass.

Shapes: R rows of a batch (images, or images x windows, image-major), H heads, T queries, K keys, D
head width, W windows.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mhprobe.backbones.base import Seam
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, wide
from mhprobe.recording.checks import (
    check_batch,
    check_finite,
    check_model,
    refuse_checkpointing,
    sized,
)
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting, usable
from mhprobe.recording.taps import Taps

CHUNK = 2**20  # weights that are computed at a time


class Weights(ABC):
    """Attention weights of one site on one batch, row by row; readable while its block runs.

    shape: (R, H, T, K). device: where they are.
    """

    shape: tuple[int, int, int, int]
    device: torch.device

    def places(self, images: int) -> int:
        """Return the number of places of an image in all its windows."""
        return self.shape[0] // images * self.shape[3]

    @abstractmethod
    def at(self, rows: Tensor, queries: Tensor) -> Tensor:
        """(len(rows), H, len(queries), K) weights, in float32 or float64.

        rows, queries: indices into R and T.
        """

    def chunks(self, rows: Tensor, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Queries, and their weights as of ``at``: about ``CHUNK`` at a time."""
        _, heads, _, keys = self.shape
        for some in queries.split(max(1, CHUNK // max(1, len(rows) * heads * keys))):
            yield some, self.at(rows, some)


class _Shown(Weights):
    """Weights that passed a module."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.device = weights.detach(), weights.device
        self.shape = tuple(weights.shape)  # type: ignore[assignment]

    def at(self, rows: Tensor, queries: Tensor) -> Tensor:
        return wide(_of_rows(self.weights, rows, queries))


class _Paired(Weights):
    """Weights from arguments of torch's scaled_dot_product_attention."""

    def __init__(
        self,
        heads: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.dim() == 3:  # rows and heads in one dimension
            query, key = (part.unflatten(0, (-1, heads)) for part in (query, key))
            if attn_mask is not None and attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (-1, heads))
        self.query, self.device = query.detach(), query.device
        key = key.detach()
        self.key = key.repeat_interleave(query.shape[1] // key.shape[1], 1) if enable_gqa else key
        self.scale = query.shape[-1] ** -0.5 if scale is None else scale
        self.shape = (*query.shape[:3], key.shape[2])
        self.causal = is_causal
        self.mask = None if attn_mask is None else attn_mask.detach().expand(self.shape)

    def at(self, rows: Tensor, queries: Tensor) -> Tensor:
        with torch.autocast(self.query.device.type, enabled=False):
            query = wide(_of_rows(self.query, rows, queries))
            key = wide(self.key if len(rows) == self.shape[0] else self.key[rows]).to(query)
            scores = (query * self.scale) @ key.mT
            if self.mask is not None:
                mask = _of_rows(self.mask, rows, queries)
                scores = (
                    scores.masked_fill(~mask, -torch.inf)
                    if mask.dtype == torch.bool
                    else scores + mask
                )
            if self.causal:
                later = torch.arange(self.shape[3], device=queries.device) > queries[:, None]
                scores = scores.masked_fill(later, -torch.inf)
            return scores.softmax(-1)


def _of_rows(values: Tensor, rows: Tensor, queries: Tensor) -> Tensor:
    """(R, H, T, ...) -> (len(rows), H, len(queries), ...).

    rows, queries: ascending, each once.
    """
    values = values if len(queries) == values.shape[2] else values[:, :, queries]
    return values if len(rows) == len(values) else values[rows]


Take = Callable[[int, Weights], None]


def stream(model: nn.Module, images: Tensor, layout: HeadLayout, take: Take) -> Tensor:
    """Run the model once, and give each site's weights to ``take`` while its block runs; return the (B, K) logits.

    images: as of ``record``, whose UserErrors these are. layout: sites that are asked. take: called
    with the number of a site and its weights, in the order of the model; nothing is kept of them.
    Raises UserError for a site whose attention weights are not to be seen.
    """
    check_model(model)
    refuse_checkpointing(model)
    check_batch(model, images, None, layout)
    streamed = Streamed(model, layout, take)
    with (
        inspecting(model, gradients=False, freeze=False),
        streamed,
        sized(model, images),
    ):
        logits = logits_of(model(usable(images)), model).detach()
        check_finite(HeadLayout(()), [], logits, None, None)
    streamed.complete()
    return logits


def mean_rows(weights: Weights, share_WT: Tensor) -> Tensor:
    """(B, W, H, K) sum over queries of their share times their row of weights.

    share_WT: of each query of each window, 0 where it is not asked. W divides R.
    """
    total, heads, _, keys = weights.shape
    images = total // len(share_WT)
    counted, device = share_WT != 0, weights.device
    queries, windows = (counted.any(dim).nonzero().flatten().to(device) for dim in (0, 1))
    rows = (torch.arange(images, device=device)[:, None] * len(share_WT) + windows).flatten()
    share_wT = share_WT.to(device)[windows]
    found_rHK = torch.zeros((), device=device)
    for some, part_rHqK in weights.chunks(rows, queries):
        share_rq = share_wT[:, some].repeat(images, 1).to(part_rHqK)
        found_rHK = found_rHK + torch.einsum("rhqk,rq->rhk", part_rHqK, share_rq)
    whole = found_rHK.new_zeros(images, len(share_WT), heads, keys)
    whole[:, windows] = found_rHK.unflatten(0, (images, -1))
    return whole


class Streamed(Taps):
    """Taps that keep nothing."""

    def __init__(self, model: nn.Module, layout: HeadLayout, take: Take) -> None:
        super().__init__(model, layout, ())
        self.take, self.met = take, [False] * len(layout.sites)
        # the number of the site whose attention runs, and where it is met
        self.inside: tuple[int, Callable[..., Tensor]] | None = None

    def complete(self) -> None:
        """Raise UserError for a site whose weights were not met."""
        for site, met in zip(self.layout.sites, self.met, strict=True):
            if not met:
                raise UserError(
                    f"{site.name}: neither its queries and keys nor its attention weights came by, "
                    "so where its heads look is unknown. Load the network with torch's own "
                    "attention (attn_implementation='sdpa' or 'eager')."
                )

    def _tap_sites(self) -> None:
        for number, site in enumerate(self.layout.sites):
            seam = self.family.seam(self.backbone, site)
            if seam.weights is None:
                raise UserError(seam.hidden)
            self.tap_weights(number, seam)
        self.enter_context(Meeting(self))

    def tap_weights(self, number: int, seam: Seam) -> None:
        """Hook in where the weights of a site, that has some, are met; ``Meeting`` sees the others."""
        bind, meeting = functools.partial, seam.meeting()
        shown = bind(self._shows, number)
        if meeting is None or seam.weights is None:
            self.enter_context(seam.watched(shown))
            return
        self.enter_context(seam.weights.register_forward_pre_hook(shown))
        enter, leave = bind(self._enters_site, number, meeting), self._leaves_site
        self.enter_context(seam.attention.register_forward_pre_hook(enter))
        self.enter_context(seam.attention.register_forward_hook(leave))

    def _enters_site(self, number: int, meeting: Callable[..., Tensor], *_: Any) -> None:
        self.inside = number, meeting

    def _leaves_site(self, *_: Any) -> None:
        self.inside = None

    def _shows(self, number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.meets(number, _Shown(args[0]))

    def meets(self, number: int, weights: Weights) -> None:
        """Give a site's weights to ``take``. UserError for a wrapper that runs the backbone twice."""
        if self.met[number]:
            raise self.several("twice or more for one batch")
        self.met[number] = True
        self.take(number, weights)


class Meeting(TorchFunctionMode):
    """While it is on, calls of the function where a site is met are seen inside it, and run as they are."""

    def __init__(self, streamed: Streamed) -> None:
        super().__init__()
        self.streamed = streamed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inside = self.streamed.inside
        if inside is None or func is not inside[1]:
            return func(*args, **kwargs)
        number = inside[0]
        if func is F.softmax:
            result = func(*args, **kwargs)
            self.streamed.meets(number, _Shown(result))
            return result
        heads = self.streamed.layout.sites[number].num_heads
        self.streamed.meets(number, _Paired(heads, *args, **kwargs))
        return func(*args, **kwargs)
