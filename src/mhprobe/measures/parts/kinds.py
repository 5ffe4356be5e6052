"""Kinds of keys that attention statistics ask about: who is the key to the query?

A kind is a boolean table over pairs. Kinds may overlap: the left neighbour is also in the same row.
``high_norm`` are tokens of outlying norm, which hold global information (Darcet, Oquab, Mairal &
Bojanowski, 2024, arXiv 2309.16588): patch tokens whose norm in the stream before the block is
``threshold`` standard deviations above the image's mean.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mhprobe.errors import UserError
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
from mhprobe.measures.parts.places import MeanOfAttention, Piece, Places, places_alone, places_of

DIRECTIONS = {
    "above": (-1, 0),
    "below": (1, 0),
    "left": (0, -1),
    "right": (0, 1),
}  # of the key, seen from the query
KINDS = (
    "cls",
    "registers",
    "self",
    "neighbours",
    *DIRECTIONS,
    "same_row",
    "same_column",
    "border",
    "high_norm",
)


class OfKinds(MeanOfAttention):
    """Base of measures that tell kinds of keys apart.

    UserError for a threshold that is not above 0.
    """

    empty = "there are no such tokens in the network, or none of such a norm in these images"

    def __init__(self, layout: HeadLayout, threshold: float = 3.0, **kwargs: Any) -> None:
        super().__init__(layout, **kwargs)
        if threshold <= 0:
            raise UserError(
                f"{self.name}: threshold is a number of standard deviations above 0, got "
                f"{threshold}."
            )
        self.threshold = threshold


def weight_on(weights_bWHQK: Tensor, whole_1WHQK: Tensor, keys: Tensor) -> Tensor:
    """(b, W, H, Q) sum of weights on ``keys`` (b, W, Q, K); for keys (1, W, Q, K) of ``whole``, summed over images."""
    source = weights_bWHQK if len(keys) == len(weights_bWHQK) else whole_1WHQK
    return (source * keys[:, :, None]).sum(-1)


def kinds_of(piece: Piece, batch: HeadBatch, threshold: float) -> dict[str, Tensor]:
    """Per kind (1 or b, W, Q, K) bool: the key may be attended to and is of that kind to the query.

    cls: the class token. registers: other prefix tokens (a distillation token too). self: the
    query. neighbours: up to
    four, and above, below, left, right: each of them. same_row, same_column: without the query
    itself. border: on the grid's rim. high_norm: see above. All False for a kind that the model
    does not have.
    """
    site, token = piece.site, piece.places.token
    before_bTC = batch.need("stream", "token kinds")[site.block].before[piece.images]
    loud_bT = pad(
        high_norm(before_bTC[:, site.prefix_tokens :], threshold), (site.prefix_tokens, 0)
    )
    loud_bWK = loud_bT[:, token.clamp(min=0)] & (token >= 0)
    return {
        **(
            fixed(site, piece.places)
            if piece.places.queries is not None
            else _whole(places_alone(site), piece.attn.device)
        ),
        "high_norm": piece.places.pairs & loud_bWK[:, :, None],
    }


@functools.lru_cache(maxsize=64)
def _whole(site: HeadSite, device: torch.device) -> dict[str, Tensor]:
    with torch.inference_mode(False):
        return fixed(site, places_of(site, device))


def fixed(site: HeadSite, places: Places) -> dict[str, Tensor]:
    """Kinds that depend on the grid alone, each (1, W, Q, K)."""
    token, pairs, patches = places.token, places.pairs, places.patch_pairs
    step_down, step_across = places.steps.unbind(-1)
    down, across = step_down.abs(), step_across.abs()
    directions = {
        n: patches & (step_down == y) & (step_across == x) for n, (y, x) in DIRECTIONS.items()
    }
    last = torch.tensor(site.token_grid, device=token.device) - 1
    rim_WK = ((places.cell == 0) | (places.cell == last)).any(-1) & places.patch
    first_WK = places.is_class if site.class_token else torch.zeros_like(places.patch)
    register_WK = (token >= 0) & ~places.patch & ~first_WK
    tables = {
        "cls": pairs & first_WK[:, None],
        "registers": pairs & register_WK[:, None],
        "self": pairs & places.itself,
        "neighbours": patches & (down + across == 1),
        **directions,
        "same_row": patches & (down == 0) & (across > 0),
        "same_column": patches & (across == 0) & (down > 0),
        "border": pairs & rim_WK[:, None],
    }
    return {kind: table[None] for kind, table in tables.items()}


def high_norm(patches_bTC: Tensor, threshold: float = 3.0) -> Tensor:
    """(b, T) bool: patch tokens whose norm lies so many standard deviations above the mean of their image's."""
    norm_bT = patches_bTC.double().norm(dim=-1)
    return norm_bT - norm_bT.mean(1, keepdim=True) > threshold * norm_bT.std(
        1, correction=0, keepdim=True
    )
