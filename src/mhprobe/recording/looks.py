"""Attention from one token, or several, laid out on the grid of patches, without windows.

It comes from recorded weights, or from rows as they pass (``recording.rows``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, family_of
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.recording.checks import about_float16
from mhprobe.recording.rows import Weights, mean_rows, stream

Query = str | Sequence[int] | Sequence[Sequence[int]]


def visible(model: nn.Module) -> tuple[HeadLayout, str]:
    """Return the layout of the heads with attention weights, and a sentence on the others; "" without others.

    Raises UserError with the reason if no head has any.
    """
    layout, family = attach(model).layout.of("head"), family_of(backbone := backbone_of(model))
    hidden = {
        site: seam.hidden
        for site in layout.sites
        if (seam := family.seam(backbone, site)).weights is None
    }
    if len(hidden) == len(layout.sites):
        raise UserError(next(iter(hidden.values())))
    shown = HeadLayout(tuple(site for site in layout.sites if site not in hidden))
    words = [
        f"{layout.num_heads - shown.num_heads} of {layout.num_heads} heads are not shown:",
        *hidden.values(),
    ]
    return shown, " ".join(words[:2]) if hidden else ""


def who_looks(site: HeadSite, query: Query, asker: str = "attention: query") -> Tensor:
    """(T,) weight of each token as a query; sums to 1, even among several.

    UserError, for ``asker``, for a query that the site has not.
    """
    height, width = site.token_grid
    prefix, tokens = site.prefix_tokens, site.prefix_tokens + height * width
    asking, word = torch.zeros(tokens, dtype=torch.float64), query if isinstance(query, str) else ""
    patches = _patches(query)
    if word == "mean":
        asking[prefix:] = 1
    elif word == "class" and site.class_token:
        asking[0] = 1
    elif word in ("register", "registers") and prefix > (first := int(site.class_token)):
        asking[first : prefix if word == "registers" else first + 1] = 1
    elif patches and all(0 <= row < height and 0 <= column < width for row, column in patches):
        for row, column in patches:
            asking[prefix + row * width + column] = 1
    else:
        has = (
            ["mean"]
            + ["class"] * site.class_token
            + ["register", "registers"] * (prefix > site.class_token)
        )
        raise UserError(
            f"{asker}: expected {', '.join(has)} or (row, column) in a grid of {height} x {width} "
            "for "
            f"{site.name}, or a list of those, each once, got {quoted(query)}."
        )
    return asking / asking.sum()


def _patches(query: Query) -> list[tuple[int, int]]:
    """(row, column) of each patch that a query names; none if it is no patch, or names one twice."""
    if not isinstance(query, list | tuple):
        return []
    named: Sequence[Any] = [query] if [type(at) for at in query] == [int, int] else query
    pairs = [
        tuple(patch)
        for patch in named
        if isinstance(patch, list | tuple) and [type(at) for at in patch] == [int, int]
    ]
    return pairs if len(set(pairs)) == len(named) else []


def looked_at(attn: Tensor, site: HeadSite, asking: Tensor) -> Tensor:
    """(B, H, rows, columns) from weights (B, W, H, K, K) and queries (T,)."""
    share_WK = _shares(site, asking, attn.shape[1] * attn.shape[-1]).to(attn)
    return _laid_out(torch.einsum("bwhqk,wq->bwhk", attn, share_WK), site)


def looks(
    model: nn.Module, images: Tensor, layout: HeadLayout, asking: Sequence[Tensor]
) -> list[Tensor]:
    """Per site (B, H, rows, columns) attention from its queries (T,), in the memory of a forward pass.

    layout: sites that are asked. Float32, or float64 of a model in float64. UserErrors are those of
    ``recording.rows.stream``, and for weights that are no numbers.
    """
    named = [{"": tokens} for tokens in asking]
    return [received[""] for received in looks_by_name(model, images, layout, named)[0]]


def looks_by_name(
    model: nn.Module, images: Tensor, layout: HeadLayout, asking: Sequence[Mapping[str, Tensor]]
) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Per site the attention of ``looks`` from each of its queries, by name, of one pass; and the logits (B, C)."""
    received: list[dict[str, Tensor]] = [{} for _ in layout.sites]

    def take(number: int, weights: Weights) -> None:
        site = layout.sites[number]
        for name, tokens in asking[number].items():
            share_WK = _shares(site, tokens, weights.places(len(images)))
            weight_bWHK = mean_rows(weights, share_WK)
            _refuse_broken(site, weight_bWHK, weights)
            received[number][name] = _laid_out(weight_bWHK, site)

    return received, stream(model, images, layout, take)


def _shares(site: HeadSite, asking: Tensor, places: int) -> Tensor:
    """(W, K) share of each query in each window, from (T,); UserError for another number of ``places``."""
    site.refuse_other_size(places, "attention")
    token_WK = site.places()
    return asking[token_WK.clamp(min=0)] * (token_WK >= 0)


def _laid_out(weight_bWHK: Tensor, site: HeadSite) -> Tensor:
    """(B, H, rows, columns) from weights of keys; padding is left out."""
    places = site.places().to(weight_bWHK.device)
    weight_bWHK = weight_bWHK * (places >= 0)[:, None]
    tokens = site.prefix_tokens + math.prod(site.token_grid)
    total = weight_bWHK.new_zeros(len(weight_bWHK), site.num_heads, tokens)
    total.index_add_(2, places.clamp(min=0).flatten(), weight_bWHK.transpose(1, 2).flatten(2))
    return total[..., site.prefix_tokens :].unflatten(-1, site.token_grid)


def _refuse_broken(site: HeadSite, weight_bWHK: Tensor, weights: Weights) -> None:
    """Raise UserError for the first image with a weight that is no number."""
    bad_bH = ~weight_bWHK.isfinite().transpose(1, 2).flatten(2).all(2)
    if bad_bH.any():
        image, head = bad_bH.nonzero()[0].tolist()
        why = weights.broken() or (
            f"Check the weights, the precision{about_float16(weights.parts()[0])} and the normalisation of "
            "the images, and that no mask leaves a query without keys."
        )
        raise UserError(
            f"attention: the weights of {site.name}'s heads are NaN or infinite for image {image}. "
            f"First in its head {head}. {why}"
        )
