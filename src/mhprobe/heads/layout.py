"""Heads and their places: sites, layouts, and the one conversion of (site, head) to a flat index.

Head h of a site owns input channels ``h * head_dim ... (h + 1) * head_dim - 1`` of its block's
output projection. Gates, masks, measures and tables share the flat index of ``HeadLayout``. Layouts
are ragged: Swin-T has 3, 6, 12, 24 heads in its stages, 138 in all. A neuron of an MLP is a unit,
too: a slice of width 1 of the input of the MLP's last linear layer. A site's ``kind`` tells which
of the two it holds. Heads come first, so they keep their numbers.
"""

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.errors import UserError

Part = Literal[
    "attention", "mlp", "embedding", "classifier"
]  # of a network; what a head stands in is the first
Scope = Literal[
    "nothing", "backbone", "weights"
]  # of what is not trained; a backbone is without its classifier
Kind = Literal["head", "neuron"]  # of the units of a site
KINDS: tuple[Kind, ...] = ("head", "neuron")  # in the order of a layout


@dataclass(frozen=True)
class Windows:
    """Windows of a site on its (height, width) grid: ``size`` per window, after a roll by ``-shift``.

    pad_first: True if padding to whole windows comes before the roll (torchvision), False if after
    it (timm).
    strided: True if a window's tokens are spread over the whole grid (MaxViT), False if they are
    neighbours.
    """

    grid: tuple[int, int]
    size: tuple[int, int]
    shift: tuple[int, int]
    pad_first: bool = False
    strided: bool = False

    @property
    def padded(self) -> tuple[int, int]:
        """(rows, columns) of the grid filled up to whole windows."""
        return self.grid[0] + -self.grid[0] % self.size[0], self.grid[1] + -self.grid[
            1
        ] % self.size[1]

    def places(self) -> Tensor:
        """(windows, K) raster token at each of a window's K places, -1 for padding.

        An image of raster indices is moved as the block moves its tokens: roll, pad, partition.
        """
        (height, width), (tall, wide) = self.grid, self.padded
        index, margin = (
            torch.arange(height * width).view(height, width),
            (0, wide - width, 0, tall - height),
        )
        index = pad(index, margin, value=-1) if self.pad_first else index
        index = index.roll((-self.shift[0], -self.shift[1]), (0, 1))
        return self._cut(index if self.pad_first else pad(index, margin, value=-1))

    def rows(self) -> Tensor:
        """(T,) position of raster token t among one image's windowed rows (windows x tokens per window)."""
        token_of_row = self.places().flatten()
        return token_of_row.argsort()[(token_of_row < 0).sum() :]  # padding comes first

    def regions(self) -> Tensor:
        """(windows, K) label of each place's region: a shifted window attends within regions only.

        A roll brings rows (columns) from the far side next to each other; attention between them is
        masked.
        """
        sides = []
        for length, win, shift in zip(self.padded, self.size, self.shift, strict=True):
            place = torch.arange(length)
            # before the last window, in it but not rolled, rolled
            sides.append(
                (place >= length - win).long() + (place >= length - shift).long()
                if shift
                else place * 0
            )
        return self._cut(3 * sides[0][:, None] + sides[1])

    def _cut(self, image: Tensor) -> Tensor:
        """(rows, columns) of whole windows -> (windows, K)."""
        (tall, wide), (win_h, win_w) = image.shape, self.size
        if self.strided:
            windows = image.view(win_h, tall // win_h, win_w, wide // win_w).permute(1, 3, 0, 2)
        else:
            windows = image.view(tall // win_h, win_h, wide // win_w, win_w).permute(0, 2, 1, 3)
        return windows.reshape(-1, win_h * win_w)


@dataclass(frozen=True)
class HeadSite:
    """The heads of one attention module, or the neurons of one MLP.

    name: the module's name in the model, e.g. ``blocks.0.attn``.
    num_heads, head_dim: number of units and their width; a neuron has width 1.
    stage, block: position in the network; ``block`` counts from 0 through all stages.
    windows: None for global attention.
    prefix_tokens: number of class, distillation and register tokens, which come before the grid.
    grid: (rows, columns) of the other tokens; None if it depends on the image.
    pixels: (down, across) input pixels from one token of the grid to the next.
    class_token: True if the first prefix token is a class token (the others are registers or
    distillation tokens).
    pooled: True if the logits come from the other tokens, so that a class token is not read.
    line: True for tokens in a line, as of a text; False for a grid.
    kind: kind of the units.
    """

    name: str
    stage: int
    block: int
    num_heads: int
    head_dim: int
    prefix_tokens: int = 0
    windows: Windows | None = None
    grid: tuple[int, int] | None = None
    pixels: tuple[float, float] = (1.0, 1.0)
    class_token: bool = False
    pooled: bool = False
    line: bool = False
    kind: Kind = "head"

    def places(self) -> Tensor:
        """(windows, K) token of each row and column of attn, as an index into T (prefix first, then raster).

        -1 for padding. One window for global attention.
        """
        return self.windows.places() if self.windows else torch.arange(self._places_in_all)[None]

    @property
    def _places_in_all(self) -> int:
        """Number of places of an image of the model's own size, in all windows."""
        return (
            math.prod(self.windows.padded)
            if self.windows
            else self.prefix_tokens + math.prod(self.token_grid)
        )

    def refuse_other_form(self, image: Sequence[int], where: str) -> None:
        """UserError for an image (height, width) of another grid with as many places: their number cannot tell."""
        rows, columns = (
            side / step for side, step in zip(image, self.pixels, strict=True)
        )  # models round them
        grid = self.grid or (rows, columns)
        other = max(abs(rows - grid[0]), abs(columns - grid[1])) >= 1
        if other and (self.windows or round(rows) * round(columns) == math.prod(grid)):
            self.refuse_other_size(f"those of {' x '.join(map(str, image))} pixels", where)

    def refuse_other_size(self, places: int | str, where: str) -> None:
        """UserError unless ``places`` is how many an image of the model's own size has, in all windows."""
        if places != (expected := self._places_in_all):
            raise UserError(
                f"{where}: {self.name}: expected the {expected} places of a grid of "
                f"{self.token_grid}, got {places}. "
                "Feed images of the size the model was made for, or make one of theirs "
                "(torchvision's Swin: detach, "
                f"set model.image_size = <pixels>, and attach again)."
            )

    def support(self) -> Tensor:
        """(windows, K queries, K keys) bool: pairs that may attend to each other; padding never does."""
        regions = self.regions()
        return regions[:, :, None] == regions[:, None, :]

    def regions(self) -> Tensor:
        """(windows, K) label of each place: equal ones may attend to each other. NaN, equal to nothing, for padding."""
        places = self.places()
        regions = torch.zeros_like(places) if self.windows is None else self.windows.regions()
        return regions.where(places >= 0, torch.nan)

    @property
    def token_grid(self) -> tuple[int, int]:
        """(rows, columns) of the grid. Raises UserError if the model does not fix it."""
        if self.line:
            raise UserError(
                f"{self.name}: expected tokens in a grid, as of an image, got a line of tokens, of "
                "a text."
            )
        if self.grid is None:
            raise UserError(
                f"{self.name}: the model takes images of any size, so its tokens have no fixed "
                "grid. Build it with a "
                f"size, of the backbone img_size=<pixels>."
            )
        return self.grid

    @property
    def channels(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def attention_size(self) -> int:
        """Number of attention weights of an image; 0 for neurons, and if it depends on the image."""
        if self.line or self.grid is None or self.kind == "neuron":
            return 0
        keys = math.prod(self.windows.size) if self.windows else self._places_in_all
        return self.num_heads * self._places_in_all * keys

    @property
    def pairs_size(self) -> int:
        """Numbers of an image's queries and keys; 0 where ``attention_size`` is."""
        return 2 * self.channels * self._places_in_all if self.attention_size else 0

    @property
    def larger_than_pairs(self) -> bool:
        """True if attention weights are more than the queries and keys that they come from."""
        if self.line or self.windows:
            return self.attention_size > self.pairs_size
        return self.attention_size >= self.pairs_size  # also where neither is fixed


@dataclass(frozen=True)
class Block:
    """One residual block: attention, then MLP.

    name: the block's module; its input and output are the residual stream before and after it.
    middle: the module, inside the block, whose input is the stream between attention and MLP.
    """

    name: str
    stage: int
    middle: str


@dataclass(frozen=True)
class HeadLayout:
    """The heads of a model: an ordered tuple of sites, and the flat numbering over all of them.

    blocks: the residual blocks from input to output; ``site.block`` counts them.

    >>> layout = HeadLayout((HeadSite("blocks.0.attn", 0, 0, num_heads=2, head_dim=4),
    ...                      HeadSite("blocks.1.attn", 0, 1, num_heads=3, head_dim=4)))
    >>> layout.num_heads, layout.offsets
    (5, (0, 2, 5))
    >>> layout.flat(site=1, head=2)
    4
    >>> layout.mask([0, 4]).tolist()  # True: this head is off
    [True, False, False, False, True]
    >>> bool((layout.mask([(0, 0), (1, 2)]) == layout.mask([0, 4])).all())  # the same heads as (site, head)
    True
    >>> [part.tolist() for part in layout.split(torch.arange(5))]  # one part per site
    [[0, 1], [2, 3, 4]]
    >>> layout.digest  # the first 8 hex digits of a SHA-256: the same on every machine
    'd2a646d1'
    >>> layout.mask([5])
    Traceback (most recent call last):
    mhprobe.errors.UserError: mask: head indices are whole numbers from 0 to 4, or (site, head) pairs, got [5].
    """

    sites: tuple[HeadSite, ...]
    blocks: tuple[Block, ...] = ()

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Flat index of each site's head 0, with the total appended: length ``len(sites) + 1``."""
        return tuple(
            sum(site.num_heads for site in self.sites[:i]) for i in range(len(self.sites) + 1)
        )

    @property
    def num_heads(self) -> int:
        """A, the number of heads of all sites."""
        return self.offsets[-1]

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of its units: heads, neurons, or both."""
        return frozenset(site.kind for site in self.sites)

    @property
    def counted(self) -> str:
        """Numbers of heads and neurons in words, e.g. "72 heads and 18432 neurons"."""
        counts = {kind: self.of(kind).num_heads for kind in KINDS if kind in self.kinds}
        named = [f"{count} {kind if count == 1 else f'{kind}s'}" for kind, count in counts.items()]
        return " and ".join(named) or "0 heads"

    def of(self, kind: Kind) -> "HeadLayout":
        """Return the layout of the units of one kind.

        Heads have the same numbers in both layouts.
        """
        if self.kinds <= {kind}:
            return self
        return HeadLayout(tuple(site for site in self.sites if site.kind == kind), self.blocks)

    @property
    def num_stages(self) -> int:
        return 1 + max(site.stage for site in self.sites)

    def span(self, site: int) -> slice:
        """The flat indices of one site's heads."""
        return slice(self.offsets[site], self.offsets[site + 1])

    def flat(self, site: int, head: int) -> int:
        """Flat index of head ``head`` of site number ``site``.

        Raises UserError if there is no such site or head.
        """
        if not 0 <= site < len(self.sites):
            raise UserError(f"the model has sites 0 to {len(self.sites) - 1}, got {site}.")
        num_heads = self.sites[site].num_heads
        if not 0 <= head < num_heads:
            raise UserError(f"{self.sites[site].name} has heads 0 to {num_heads - 1}, got {head}.")
        return self.offsets[site] + head

    @functools.cached_property
    def site_names(self) -> tuple[str, ...]:
        """(S,) names, e.g. "block 5"; those of the modules where a block has several attentions side by side."""
        beside = Counter((site.block, site.kind) for site in self.sites)
        return tuple(
            site.name if beside[site.block, site.kind] > 1 else f"block {site.block}"
            for site in self.sites
        )

    def name_of(self, flat: int) -> str:
        """Name of a head, e.g. "block 5 head 11", with the name of its site."""
        number, head, _ = list(self)[flat]
        return f"{self.site_names[number]} head {head}"

    def __iter__(self) -> Iterator[tuple[int, int, HeadSite]]:
        """(site number, head within the site, site) for each flat index in turn."""
        for number, site in enumerate(self.sites):
            for head in range(site.num_heads):
                yield number, head, site

    @property
    def site_of_head(self) -> Tensor:
        """(A,) int64, the number of each head's site."""
        return torch.tensor([number for number, _, _ in self])

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., A) -> one (..., H) view per site."""
        views: tuple[Tensor, ...] = values.split([site.num_heads for site in self.sites], dim=-1)
        return views

    def kept(self, mask: Tensor) -> dict[str, list[int]]:
        """Units of each site that ``mask`` (A,) leaves on, numbered within the site, by the site's name."""
        parts = zip(self.sites, self.split(~mask), strict=True)
        return {site.name: kept_H.nonzero().flatten().tolist() for site, kept_H in parts}

    @functools.cached_property
    def digest(self) -> str:
        """8 hex digits of a hash of the sites' names, numbers of heads and widths, by which files name a model."""
        sites = [[site.name, site.num_heads, site.head_dim] for site in self.sites]
        return hashlib.sha256(json.dumps(sites).encode()).hexdigest()[:8]

    def mask(
        self,
        heads: Sequence[int] | Sequence[tuple[int, int]] | Sequence[bool] | Tensor,
        where: str = "mask",
    ) -> Tensor:
        """(A,) bool mask, True for a head that is off.

        heads: flat indices or (site, head) pairs, or a bool mask, which is checked and copied.
        where: name of the argument, for errors. Raises UserError for anything else, and for numbers
        that are all 0 or 1: a mask, or the heads 0 and 1.
        """
        tensor = _tensor(heads)
        if tensor.dtype == torch.bool:
            if tensor.shape != (self.num_heads,):
                raise UserError(
                    f"{where}: expected shape ({self.num_heads},), one entry per head of "
                    f"{len(self.sites)} sites, "
                    f"got {tuple(tensor.shape)}. Was it made for another model?"
                )
            return tensor.clone()
        mask = torch.zeros(self.num_heads, dtype=torch.bool)
        mask[self.indices(heads, where)] = True
        return mask

    def indices(
        self, heads: Sequence[int] | Sequence[tuple[int, int]] | Tensor, where: str = "heads"
    ) -> list[int]:
        """Flat indices of ``heads``, in their order. where: name of the argument, for errors.

        heads: flat indices or (site, head) pairs. Raises UserError for anything else, for an
        unknown or repeated head, and for a list that could be a mask.
        """
        tensor = _tensor(heads)
        if not tensor.numel():
            return []
        shown = f"{heads.tolist() if isinstance(heads, Tensor) else heads!s:.200}"
        whole = not (
            tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
        )
        listed = whole and tensor.dim() in (1, 2)
        if listed and self._could_be_mask(tensor, heads):
            raise UserError(
                f"{where}: {tensor.numel()} numbers that are 0 or 1 may be a mask or a list of "
                f"heads, got {shown}; "
                f"give a mask as bool (mask.bool()), or a shorter list of heads."
            )
        flat = self._flat_of(tensor) if listed else None
        if flat is None:
            raise UserError(
                f"{where}: head indices are whole numbers from 0 to {self.num_heads - 1}, or "
                "(site, head) pairs, "
                f"got {shown}."
            )
        if twice := [head for head, times in Counter(flat).items() if times > 1]:
            raise UserError(
                f"{where}: expected each head once, got {twice[0]} {flat.count(twice[0])} times: "
                f"{shown}."
            )
        return flat

    def _flat_of(self, tensor: Tensor) -> list[int] | None:
        """Flat indices of (N,) indices or (N, 2) pairs; None for anything else."""
        if tensor.dim() == 2:
            pairs = tensor.tolist() if tensor.shape[1] == 2 else None
            return pairs and [self.flat(site, head) for site, head in pairs]
        inside = tensor.min() >= 0 and tensor.max() < self.num_heads
        return tensor.tolist() if inside else None

    def _could_be_mask(self, tensor: Tensor, heads: object) -> bool:
        """True if every number is 0 or 1, in one row of heads, or a row per site if all have two heads."""
        if tensor.min() < 0 or tensor.max() > 1:
            return False
        listed = list(heads) if isinstance(heads, (list, tuple)) else None
        if tensor.dim() == 2:
            of_sites = tensor.shape == (len(self.sites), 2) and all(
                site.num_heads == 2 for site in self.sites
            )
            return of_sites and not (
                listed is not None and all(isinstance(row, tuple) for row in listed)
            )
        # a list in which no number stands twice names heads: only of one or two heads could it be a
        # mask
        return len(tensor) == self.num_heads and not (
            listed is not None and len(tensor.unique()) == len(tensor)
        )


def _tensor(heads: object) -> Tensor:
    """Argument as a tensor; NaN if it is none: words, rows of different lengths, bool among numbers."""
    mixed = isinstance(heads, (list, tuple)) and {bool} < {type(item) for item in heads}
    try:
        return torch.tensor(torch.nan) if mixed else torch.as_tensor(heads)
    except (TypeError, ValueError, RuntimeError):
        return torch.tensor(torch.nan)
