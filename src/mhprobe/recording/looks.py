"""Recorded attention from one token, or several, laid out on the grid of patches, without windows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, family_of
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout, HeadSite

Query = str | Sequence[int]


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
    """(T,) weight of each token as a query; sums to 1.

    UserError, for ``asker``, for a query that the site has not.
    """
    height, width = site.token_grid
    prefix, tokens = site.prefix_tokens, site.prefix_tokens + height * width
    asking, word = torch.zeros(tokens, dtype=torch.float64), query if isinstance(query, str) else ""
    patch = (
        query
        if isinstance(query, list | tuple) and [type(at) for at in query] == [int, int]
        else (-1, -1)
    )
    if word == "mean":
        asking[prefix:] = 1
    elif word == "class" and site.class_token:
        asking[0] = 1
    elif word in ("register", "registers") and prefix > (first := int(site.class_token)):
        asking[first : prefix if word == "registers" else first + 1] = 1
    elif 0 <= patch[0] < height and 0 <= patch[1] < width:
        asking[prefix + patch[0] * width + patch[1]] = 1
    else:
        has = (
            ["mean"]
            + ["class"] * site.class_token
            + ["register", "registers"] * (prefix > site.class_token)
        )
        raise UserError(
            f"{asker}: expected {', '.join(has)} or (row, column) in a grid of {height} x {width} "
            "for "
            f"{site.name}, got {quoted(query)}."
        )
    return asking / asking.sum()


def looked_at(attn: Tensor, site: HeadSite, asking: Tensor) -> Tensor:
    """(B, H, rows, columns) from weights (B, W, H, K, K) and queries (T,)."""
    site.refuse_other_size(attn.shape[1] * attn.shape[-1], "attention")
    places = site.places().to(attn.device)
    real = places >= 0
    share_WK = asking.to(attn)[places.clamp(min=0)] * real
    weight_bWHK = torch.einsum("bwhqk,wq->bwhk", attn, share_WK) * real[:, None]
    total = attn.new_zeros(len(attn), site.num_heads, len(asking))
    total.index_add_(2, places.clamp(min=0).flatten(), weight_bWHK.transpose(1, 2).flatten(2))
    return total[..., site.prefix_tokens :].unflatten(-1, site.token_grid)
