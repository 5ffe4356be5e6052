"""Attention weights of one site on a batch, read row by row: as a matrix, or as queries and keys.

A row of softmax(q k^T * scale + mask) needs its query and all keys alone. What is held of a site
grows with its tokens then, and not with their square; rows come to be while they are read.

Shapes: R rows of a batch (images, or images x windows, image-major), H heads, T queries, K keys, D
head width, W windows.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 2**20  # weights that are computed at a time


class Weights(ABC):
    """Attention weights of one site on one batch, row by row.

    shape: (R, H, T, K). device: where they are.
    """

    shape: tuple[int, int, int, int]
    device: torch.device

    def places(self, images: int) -> int:
        """Return the number of places of an image in all its windows."""
        return self.shape[0] // images * self.shape[3]

    @abstractmethod
    def at(self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(len(rows), H, len(queries), K) weights, computed in ``dtype`` or wider.

        rows, queries: ascending indices into R and T, each once.
        """

    @abstractmethod
    def slopes_at(
        self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Slopes along the weights, as of ``at``. Only where a backward pass has left them."""

    @abstractmethod
    def parts(self) -> list[Tensor]:
        """Tensors (R, ...) that these weights are made of, whatever the batch."""

    @abstractmethod
    def of(self, parts: Sequence[Tensor]) -> "Weights":
        """Return weights of other rows of the same site, from their ``parts``."""

    def broken(self) -> str:
        """Return a sentence on what makes weights NaN; "" if it is not known."""
        return ""

    def wide(self, dtype: torch.dtype) -> "Weights":
        """Return the same weights, to be read often in ``dtype``."""
        return self

    def form(self) -> "Weights":
        """Return what ``of`` needs of these weights, on the CPU: their parts are there without numbers."""
        return self.of([_without_numbers(part) for part in self.parts()])

    def chunks(self, rows: Tensor, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Queries, and their weights as of ``at``: about ``CHUNK`` at a time."""
        _, heads, _, keys = self.shape
        for some in queries.split(max(1, CHUNK // max(1, len(rows) * heads * keys))):
            yield some, self.at(rows, some)


class Shown(Weights):
    """Weights (R, H, T, K) that came to be as a matrix, and slopes along them."""

    def __init__(self, weights: Tensor, slopes: Tensor | None = None) -> None:
        self.weights, self.device = weights.detach(), weights.device
        self.slopes = slopes
        self.shape = tuple(weights.shape)  # type: ignore[assignment]

    def at(self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return _wide(_of_rows(self.weights, rows, queries), dtype)

    def slopes_at(
        self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        assert self.slopes is not None  # the record was asked for them
        return _wide(_of_rows(self.slopes, rows, queries), dtype)

    def parts(self) -> list[Tensor]:
        return [self.weights]

    def of(self, parts: Sequence[Tensor]) -> "Shown":
        return Shown(parts[0])


class Product(NamedTuple):
    """Arguments of torch's scaled_dot_product_attention, in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


class Paired(Weights):
    """Weights of a ``Product`` of queries and keys. slope: along its result."""

    def __init__(self, heads: int, product: Product) -> None:
        query, key, value, attn_mask, _, causal, scale, grouped = product
        if query.dim() == 3:  # rows and heads in one dimension
            query, key, value = (part.unflatten(0, (-1, heads)) for part in (query, key, value))
            if attn_mask is not None and attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (-1, heads))
        if grouped:
            times = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(times, 1) for part in (key, value))
        self.query, self.key = query.detach(), key.detach()
        self.value: Tensor | None = value.detach()
        self.slope: Tensor | None = None
        self.device = query.device
        self.scale = query.shape[-1] ** -0.5 if scale is None else scale
        self.shape = (*query.shape[:3], key.shape[2])
        self.causal = causal
        self.mask = None if attn_mask is None else attn_mask.detach().expand(self.shape)
        # a bias of positions is the same for all rows, also in a batch of one
        self.shared = attn_mask is None or attn_mask.dim() < 4 or len(attn_mask) == 1

    def at(self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        with torch.autocast(self.query.device.type, enabled=False):
            query = _wide(_of_rows(self.query, rows, queries), dtype)
            key = self._all(self.key, rows).to(query)
            scores = (query * self.scale) @ key.mT
            if self.mask is not None:
                mask = _of_rows(self.mask, rows, queries)
                scores = (
                    scores.masked_fill_(~mask, -torch.inf)
                    if mask.dtype == torch.bool
                    else scores + mask
                )
            if self.causal:
                later = torch.arange(self.shape[3], device=queries.device) > queries[:, None]
                scores = scores.masked_fill_(later, -torch.inf)
            return scores.softmax(-1)

    def slopes_at(
        self, rows: Tensor, queries: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        # an output is the weights' sum of values: its slope goes to a weight by that weight's value
        assert self.slope is not None and self.value is not None  # the record was asked for them
        with torch.autocast(self.query.device.type, enabled=False):
            slope = _wide(_of_rows(self.slope, rows, queries), dtype)
            return slope @ self._all(self.value, rows).to(slope).mT

    def parts(self) -> list[Tensor]:
        of_rows = [] if self.mask is None or self.shared else [self.mask]
        return [self.query, self.key, *of_rows]

    def of(self, parts: Sequence[Tensor]) -> "Paired":
        one = copy.copy(self)
        one.query, one.key, *mask = parts
        one.shape, one.device = (len(one.query), *self.shape[1:]), one.query.device
        if mask:
            (one.mask,) = mask
        elif self.mask is not None:  # the same for all rows
            one.mask = self.mask[:1].to(one.device).expand(one.shape)
        one.value = one.slope = None
        return one

    def kept(self, values: bool = False) -> "Paired":
        """Return weights that hold copies of queries and keys alone, to be read behind the pass.

        values: True for values, too; then nothing is copied, for a graph holds all three anyway.
        """
        if values:
            one = self.of(self.parts())
            one.value = self.value
            return one
        return self.of([part.contiguous() for part in self.parts()])

    def broken(self) -> str:
        for what, part in (("queries", self.query), ("keys", self.key)):
            if not part.isfinite().all():
                narrow = part.dtype == torch.float16
                half = ", float16's largest number is 65,504" if narrow else ""
                return f"Its {what} are NaN or infinite before the softmax{half}."
        if self.mask is not None:
            mask = self.mask[:1] if self.shared else self.mask
            seen = mask if mask.dtype == torch.bool else mask != -torch.inf
            alone = (~seen.any(-1)).flatten(0, 1).any(0).nonzero()
            if len(alone):
                return f"Its mask leaves query {int(alone[0])} without keys: let it see itself."
        return ""

    def wide(self, dtype: torch.dtype) -> "Paired":
        one = copy.copy(self)
        one.query, one.key = _wide(self.query, dtype), _wide(self.key, dtype)
        if self.slope is not None and self.value is not None:
            one.slope, one.value = _wide(self.slope, dtype), _wide(self.value, dtype)
        return one

    def sloped(self, slope: Tensor | None) -> "Paired":
        """Return these weights, with the slope (R, H, T, D) along the result of attention."""
        one = copy.copy(self)
        one.slope = None if slope is None else slope.reshape(*self.shape[:3], -1)
        return one

    def _all(self, values: Tensor, rows: Tensor) -> Tensor:
        return values if len(rows) == self.shape[0] else values[rows]


def _without_numbers(part: Tensor) -> Tensor:
    """(R, ...) -> (1, 0, ...) on the CPU."""
    return part.new_empty((1, *[0] * (part.dim() - 1)), device="cpu")


def _wide(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(torch.promote_types(values.dtype, dtype))


def _of_rows(values: Tensor, rows: Tensor, queries: Tensor) -> Tensor:
    """(R, H, T, ...) -> (len(rows), H, len(queries), ...).

    rows, queries: ascending, each once.
    """
    values = values if len(queries) == values.shape[2] else values[:, :, queries]
    return values if len(rows) == len(values) else values[rows]
