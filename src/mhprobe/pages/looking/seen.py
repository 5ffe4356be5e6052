"""Compression of the attention of all heads from all tokens of an image, for a page.

A row of weights is stored as its largest weight (uint16, of 65,535) and a level per key: the square
root of the weight over the largest, in ``levels`` steps. The error is at most 1 / levels of the
largest weight. If the page would grow too large, there are fewer levels, then queries are averaged
over fields of patches, then images are left out.

Shapes: S sites, W windows (1 for global attention), H heads of a site, R rows (queries), K keys of
a window.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from mhprobe.heads import HeadLayout, HeadSite, Weights
from mhprobe.pages.html import pictures
from mhprobe.recording.looks import visible
from mhprobe.recording.rows import stream

ROOM = 27_000_000  # characters of a page that attention may take
BEST = 8  # weights that are packed into a character, at best


class FormOfAttention(NamedTuple):
    """Precision of attention: levels per weight; side, in patches, of the field that queries are averaged over."""

    levels: int
    field: int


FORMS = [
    FormOfAttention(63, 1),
    FormOfAttention(31, 1),
    FormOfAttention(15, 1),
    FormOfAttention(15, 2),
    FormOfAttention(15, 4),
    FormOfAttention(15, 8),
]


def attention_of_image(model: nn.Module, image: Tensor, field: int = 1) -> list[Tensor]:
    """Return (W, H, R, K) weights per ``visible`` site, of a (1, 3, height, width) image.

    field: queries are averaged over fields of so many patches, as they pass: no K x K matrix comes
    to be then. UserError without sites.
    """
    layout, _ = visible(model)
    found: list[Tensor] = []

    def take(number: int, weights: Weights) -> None:
        row_K, share_K = _fields(layout.sites[number], weights.shape[2], field)
        rows, queries = (torch.arange(count) for count in (weights.shape[0], weights.shape[2]))
        whole = torch.zeros(len(rows), weights.shape[1], int(row_K.max()) + 1, weights.shape[3])
        for some, part_WHqK in weights.chunks(rows.to(weights.device), queries.to(weights.device)):
            part_WHqK = part_WHqK.cpu().float() * share_K[some.cpu(), None]
            whole.index_add_(2, row_K[some.cpu()], part_WHqK)
        found.append(whole)

    stream(model, image, layout, take)
    return found


def _fields(site: HeadSite, queries: int, field: int) -> tuple[Tensor, Tensor]:
    """(K,) row of each query, and its share in that: patches of a field share one, but for windows."""
    row_K, prefix = torch.arange(queries), site.prefix_tokens
    if field > 1 and site.windows is None:
        rows, columns = (torch.arange(side) // field for side in site.token_grid)
        row_K[prefix:] = prefix + (rows[:, None] * (int(columns.max()) + 1) + columns).flatten()
    return row_K, 1 / row_K.bincount()[row_K].float()


def form_that_fits(
    model: nn.Module, image: Tensor, images: int, room: int
) -> tuple[FormOfAttention, str]:
    """Return the finest form in which so many images have room, by the size of the first; and its pack.

    image: the first, (1, 3, height, width). UserError as ``attention_of_image``.
    """
    layout, pack = visible(model)[0], ""
    for field, forms in itertools.groupby(FORMS, lambda form: form.field):
        if field != FORMS[-1].field and images * _size(layout, field) > BEST * room:
            continue  # it would not fit, and takes time and memory
        attention = attention_of_image(model, image, field)
        for form in forms:
            pack = packed_attention(attention, layout, form)
            if images * len(pack) <= room:
                return form, pack
    return FORMS[-1], pack


def _size(layout: HeadLayout, field: int) -> int:
    """Number of weights of an image, with queries averaged over fields."""
    sizes = []
    for site in layout.sites:
        windows, keys = site.places().shape
        rows = int(_fields(site, keys, field)[0].max()) + 1
        sizes.append(windows * site.num_heads * rows * keys)
    return sum(sizes)


def packed_attention(attention: list[Tensor], layout: HeadLayout, form: FormOfAttention) -> str:
    """Pack an image's attention as base64 of gzip: per site (W, H, R) largest weights, then (W, H, R, K) levels."""
    parts = []
    for site, weights_WHKK in zip(layout.sites, attention, strict=True):
        rows_WHRK = _rows(weights_WHKK, site, form.field)
        largest = rows_WHRK.amax(-1, keepdim=True)
        levels = (
            (form.levels * (rows_WHRK / largest.clamp(min=1e-12)).clamp(min=0).sqrt())
            .round()
            .byte()
        )
        parts.append((65535 * largest.clamp(0, 1)).round().numpy().astype("<u2").tobytes())
        parts.append(levels.numpy().tobytes())
    return pictures.gzipped(b"".join(parts))


def described_sites(layout: HeadLayout, form: FormOfAttention) -> list[dict[str, Any]]:
    """Describe sites for a reader of ``packed_attention``.

    places: (W, K) tokens of windows, -1 for padding; None if global.
    """
    return [
        {
            "name": site.name,
            "heads": site.num_heads,
            "grid": list(site.token_grid),
            "prefix": site.prefix_tokens,
            "class_token": site.class_token,
            "places": None if site.windows is None else site.places().tolist(),
            "field": form.field if site.windows is None else 1,
        }
        for site in layout.sites
    ]


def _rows(weights: Tensor, site: HeadSite, field: int) -> Tensor:
    """(W, H, R, K): prefix tokens as they are, patches averaged over fields; windows are small enough as they are.

    weights: (W, H, K, K), or averaged already.
    """
    if field == 1 or site.windows is not None or weights.shape[2] != weights.shape[3]:
        return weights
    prefix, patches = weights[:, :, : site.prefix_tokens], weights[:, :, site.prefix_tokens :]
    grids = patches.transpose(2, 3).unflatten(3, site.token_grid)  # (1, H, K, rows, columns)
    pooled = (
        avg_pool2d(grids.flatten(0, 1), field, ceil_mode=True)
        .flatten(2)
        .unflatten(0, grids.shape[:2])
    )
    return torch.cat([prefix, pooled.transpose(2, 3)], 2)


def all_packed(
    model: nn.Module,
    images: Tensor,
    first: Callable[[FormOfAttention, str], object],
    done: Callable[[], None],
) -> tuple[FormOfAttention, list[str]]:
    """Pack the attention of as many images as there is room for.

    images: (N, 3, height, width), normalised. first: called with the first pack, before the others.
    done: called after each. Raises UserError as ``attention_of_image``.
    """
    layout, form, packs = visible(model)[0], FORMS[-1], list[str]()
    for image in images.split(1):
        if packs:
            pack = packed_attention(attention_of_image(model, image, form.field), layout, form)
        else:
            form, pack = form_that_fits(model, image, len(images), ROOM)
        if packs and sum(map(len, packs)) + len(pack) > ROOM:
            break
        if not packs:
            first(form, pack)
        packs.append(pack)
        done()
    return form, packs
