"""Compression of the attention of all heads from all tokens of an image, for a page.

A row of weights is stored as its largest weight (uint16, of 65,535) and a level per key: the square
root of the weight over the largest, in ``levels`` steps. The error is at most 1 / levels of the
largest weight. If the page would grow too large, there are fewer levels, then queries are averaged
over fields of patches, then images are left out.

Shapes: S sites, W windows (1 for global attention), H heads of a site, R rows (queries), K keys of
a window.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.pages.html import pictures
from mhprobe.recording.looks import visible
from mhprobe.recording.record import record

ROOM = 27_000_000  # characters of a page that attention may take


class Form(NamedTuple):
    """Precision of attention: levels per weight; side, in patches, of the field that queries are averaged over."""

    levels: int
    field: int


FORMS = [Form(63, 1), Form(31, 1), Form(15, 1), Form(15, 2), Form(15, 4), Form(15, 8)]


def attention_of_image(model: nn.Module, image: Tensor) -> list[Tensor]:
    """Return (W, H, K, K) weights per ``visible`` site, of a (1, 3, height, width) image.

    UserError without sites.
    """
    layout, _ = visible(model)
    return [
        attn[0].float().cpu()
        for attn in record(model, image, needs={"attn"}, layout=layout).need("attn", "look")
    ]


def fitting(attention: list[Tensor], layout: HeadLayout, images: int, room: int) -> Form:
    """Return the finest form in which so many images have room, by the size of the first."""
    return next(
        (form for form in FORMS if images * len(packed(attention, layout, form)) <= room), FORMS[-1]
    )


def packed(attention: list[Tensor], layout: HeadLayout, form: Form) -> str:
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
    return pictures.packed(b"".join(parts))


def described(layout: HeadLayout, form: Form) -> list[dict[str, Any]]:
    """Describe sites for a reader of ``packed``.

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
    """(W, H, R, K): prefix tokens as they are, patches averaged over fields; windows are small enough as they are."""
    if field == 1 or site.windows is not None:
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
    model: nn.Module, images: Tensor, first: Callable[[Form, str], object], done: Callable[[], None]
) -> tuple[Form, list[str]]:
    """Pack the attention of as many images as there is room for.

    images: (N, 3, height, width), normalised. first: called with the first pack, before the others.
    done: called after each. Raises UserError as ``attention_of_image``.
    """
    layout, form, packs = visible(model)[0], FORMS[-1], list[str]()
    for image in images.split(1):
        attention = attention_of_image(model, image)
        form = form if packs else fitting(attention, layout, len(images), ROOM)
        pack = packed(attention, layout, form)
        if packs and sum(map(len, packs)) + len(pack) > ROOM:
            break
        if not packs:
            first(form, pack)
        packs.append(pack)
        done()
    return form, packs
