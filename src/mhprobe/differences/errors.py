"""Errors of one batch: what network B makes otherwise than A, its own doing and what it inherits.

An error is relative: the length of the difference over the length of what A gives, per image. *Own*
errors compare A with B on A's stream, *inherited* ones B on its own stream with B on A's, and
*total* ones the two networks as they are. A value that is not finite is an infinite error.

Shapes: B images, T tokens, L blocks, A heads of network A, H heads of a site, D head width, C
channels, G groups of neurons of an MLP, M MLPs, R rows (images x windows), q queries, K keys.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.differences.passes import Pass, chosen_queries
from mhprobe.differences.sides import Pair, Side, Torch
from mhprobe.heads import HeadSite, Stream, wide
from mhprobe.recording.record import in_raster_order

GROUPS = 8  # of the neurons of an MLP, by their numbers
PARTS = ("heads", "projection", "neurons", "mlp output")


class Own(NamedTuple):
    """Errors of B on A's stream, per image: its own doing.

    arriving: (B, L) of the stream in front of each block; the first is the embedding. blocks: (B,
    L) of what a block writes, over the length of what A's writes. last: (B,) of the logits behind
    the last stream. heads: (B, A) of what a head writes. attention: (B, A) Jensen-Shannon
    divergence in units of ln 2, NaN where it is not to be seen. neurons: (B, M * G). All but
    attention are NaN for units that B has not.
    """

    arriving: Tensor
    blocks: Tensor
    last: Tensor
    heads: Tensor
    attention: Tensor
    neurons: Tensor


class Rest(NamedTuple):
    """Errors that are not B's own, and the parts of those that are, per image.

    total: (B, L) of the stream behind each block. inherited: (B, L) of what a block writes.
    parts: (B, L, 4) of what a block writes, by ``PARTS``. heads, inherited_heads, attention: (B, A)
    as in ``Own``. logits: (B,).
    """

    total: Tensor
    inherited: Tensor
    parts: Tensor
    heads: Tensor
    inherited_heads: Tensor
    attention: Tensor
    logits: Tensor


class Pairs(NamedTuple):
    """Pairs of the sites of heads and of MLPs."""

    heads: list[Pair]
    neurons: list[Pair]


def own(a: Torch, b: Side, pairs: Pairs, first: Pass, fed: Pass) -> Own:
    """Compare B on A's stream with A. first: A's natural pass. fed: B's on it."""
    arriving = [
        relative(came, stream.before)
        for came, stream in zip(fed.arrived, first.streams, strict=True)
    ]
    blocks = [
        relative(written(theirs), written(mine))
        for theirs, mine in zip(fed.streams, first.streams, strict=True)
    ]
    return Own(
        torch.stack(arriving, 1),
        torch.stack(blocks, 1),
        relative(fed.logits[:, None], first.logits[:, None]),
        torch.cat([_heads(a, b, pair, first, fed, first) for pair in pairs.heads], 1),
        torch.cat([_attention(pair, first, fed) for pair in pairs.heads], 1),
        torch.cat([_neurons(pair, first, fed) for pair in pairs.neurons], 1)
        if pairs.neurons
        else first.logits.new_zeros(len(first.logits), 0, dtype=torch.float64),
    )


def rest(
    a: Torch, b: Side, pairs: Pairs, first: Pass, natural: Pass, fed: Pass, borrowed: Pass
) -> Rest:
    """Compare B's natural pass with A's, and with B on A's stream. borrowed: A's pass with B's units."""
    streams = list(zip(first.streams, natural.streams, fed.streams, borrowed.streams, strict=True))
    return Rest(
        torch.stack([relative(theirs.after, mine.after) for mine, theirs, _, _ in streams], 1),
        torch.stack(
            [relative(written(n), written(f), written(mine)) for mine, n, f, _ in streams], 1
        ),
        torch.stack([_parts(mine, f, lent) for mine, _, f, lent in streams], 1),
        torch.cat([_heads(a, b, pair, first, natural, first) for pair in pairs.heads], 1),
        torch.cat([_heads(b, b, pair, fed, natural, first, a) for pair in pairs.heads], 1),
        torch.cat([_attention(pair, first, natural) for pair in pairs.heads], 1),
        relative(natural.logits[:, None], first.logits[:, None]),
    )


def written(stream: Stream) -> Tensor:
    """(B, T, C) what a block writes into its stream."""
    return wide(stream.after) - wide(stream.before)


def relative(theirs: Tensor, mine: Tensor, over: Tensor | None = None) -> Tensor:
    """(B,) length of the difference of (B, T, C), over that of ``mine`` or ``over``; infinite where it is no number."""
    apart = (wide(theirs) - wide(mine)).flatten(1)
    length = wide(mine if over is None else over).flatten(1)
    return ratio(apart.double().square().sum(1), length.double().square().sum(1))


def ratio(square: Tensor, over: Tensor) -> Tensor:
    """Square root of a ratio of squares; 0 for 0 over 0, infinite for what is no number."""
    tiny = torch.finfo(torch.float64).tiny
    return (square / over.clamp(min=tiny)).sqrt().nan_to_num(nan=math.inf, posinf=math.inf)


def _parts(mine: Stream, theirs: Stream, lent: Stream) -> Tensor:
    """(B, 4) of heads, projection, neurons and the MLP's output: what they add to a block's error of its own."""
    middles = [wide(stream.middle) for stream in (mine, lent, theirs)]
    mlps = [wide(stream.after) - wide(stream.middle) for stream in (mine, lent, theirs)]
    write = written(mine)
    pairs = [(part[1], part[0]) for part in (middles, mlps)]
    pairs += [(part[2], part[1]) for part in (middles, mlps)]
    heads, neurons, projection, output = (relative(two, one, write) for two, one in pairs)
    return torch.stack([heads, projection, neurons, output], 1)


def _heads(
    a: Side, b: Side, pair: Pair, first: Pass, second: Pass, over: Pass, dense: Side | None = None
) -> Tensor:
    """(B, H) error of what the heads of a site write; NaN for those that only A has.

    dense: None if ``first`` is A's pass; else A, and ``first`` is one of B's, too.
    """
    site, images = pair.site, len(over.logits)
    found = over.logits.new_full((images, site.num_heads), math.nan, dtype=torch.float64)
    if pair.other is None or not pair.mine:
        return found
    theirs_site = _heads_of(b)[pair.other]
    theirs = in_raster_order(theirs_site, second.heads[pair.other], images)[:, :, pair.theirs]
    if dense is None:
        mine = in_raster_order(site, first.heads[pair.number], images)[:, :, pair.mine]
    else:
        mine = in_raster_order(theirs_site, first.heads[pair.other], images)[:, :, pair.theirs]
    whole = in_raster_order(site, over.heads[pair.number], images)[:, :, pair.mine]
    out = (dense or a).output(site)
    assert out is not None, "A is a PyTorch network"
    out_a = _gated(dense or a, site, out)[pair.mine]
    other = b.output(theirs_site)
    out_b = out_a if other is None else _gated(b, theirs_site, other)[pair.theirs]
    if dense is not None:
        out_a = out_b
    found[:, pair.mine] = _of_writes(wide(theirs), out_b, wide(mine), out_a, wide(whole))
    return found


def _of_writes(theirs: Tensor, out_b: Tensor, mine: Tensor, out_a: Tensor, whole: Tensor) -> Tensor:
    """(B, h) ||z_b W_b - z_a W_a|| / ||z W_a|| from (B, T, h, D) and (h, D, C).

    Where the two W are equal, D x D numbers per head are enough, and no difference is rounded away.
    """
    kind = torch.promote_types(mine.dtype, theirs.dtype)
    theirs, mine, whole, out_a, out_b = (
        part.to(mine.device, kind) for part in (theirs, mine, whole, out_a, out_b)
    )
    if out_a.shape == out_b.shape and torch.equal(out_a, out_b):
        apart = squared(theirs - mine, out_a)
    else:
        parts = [
            (theirs[:, :, h] @ out_b[h] - mine[:, :, h] @ out_a[h]).double().square().sum((1, 2))
            for h in range(mine.shape[2])
        ]
        apart = torch.stack(parts, 1)
    return ratio(apart, squared(whole, out_a))


def squared(z: Tensor, out: Tensor) -> Tensor:
    """(B, h) ||z W||^2 over tokens, in float64."""
    out = out.double()
    gram_hDD = out @ out.mT
    of_z_BhDD = torch.einsum("bthd,bthe->bhde", z, z).double()
    return (of_z_BhDD * gram_hDD).sum((2, 3)).clamp(min=0)


def _gated(side: Side, site: HeadSite, out: Tensor) -> Tensor:
    return out * side.gate(site).to(out)[:, None, None] if isinstance(side, Torch) else out


def _heads_of(side: Side) -> list[HeadSite]:
    return [site for site in side.layout.sites if site.kind == "head"]


def _attention(pair: Pair, first: Pass, second: Pass) -> Tensor:
    """(B, H) Jensen-Shannon divergence between the attention of two passes, in units of ln 2."""
    images = len(first.logits)
    found = first.logits.new_full((images, pair.site.num_heads), math.nan, dtype=torch.float64)
    mine = first.attention[pair.number]
    theirs = None if pair.other is None else second.attention[pair.other]
    if mine is None or theirs is None or not pair.mine:
        return found
    found[:, pair.mine] = divergence(
        mine[:, pair.mine], theirs[:, pair.theirs], counted(pair.site, mine, images)
    )
    return found


def counted(site: HeadSite, rows: Tensor, images: int) -> Tensor:
    """(W, q) float64, 1 for queries of an image's windows that are tokens, 0 for padding."""
    windows = rows.shape[0] // images
    if site.windows is None:
        return torch.ones(windows, rows.shape[2], dtype=torch.float64)
    places_WK = site.places()
    return (places_WK[:, chosen_queries(places_WK.shape[1])] >= 0).double()


def divergence(mine: Tensor, theirs: Tensor, counts_Wq: Tensor) -> Tensor:
    """(B, H) mean over queries of the Jensen-Shannon divergence of (R, H, q, K) rows, over ln 2; 1 for NaN."""
    windows = len(counts_Wq)
    shares = []
    for p, q in zip(mine.split(windows), theirs.split(windows), strict=True):  # one image at a time
        p, q = p.double(), q.double()
        half = (p + q) / 2
        both_WHq = (_kl(p, half) + _kl(q, half)).sum(-1) / 2
        weight = counts_Wq.to(both_WHq)[:, None]
        shares.append((both_WHq * weight).sum((0, 2)) / weight.sum())
    return (torch.stack(shares).clamp(min=0) / math.log(2)).nan_to_num(nan=1.0)


def _kl(p: Tensor, half: Tensor) -> Tensor:
    """Summands p ln(p / half) - p + half, which are no less than 0 and add up to the divergence."""
    return torch.special.xlogy(p, p / half.clamp(min=1e-300)) - p + half


def _neurons(pair: Pair, first: Pass, second: Pass) -> Tensor:
    """(B, G) error of groups of an MLP's neurons; NaN for a group that B has not."""
    images, count = len(first.logits), len(pair.numbers)
    if pair.other is None or not pair.mine or not second.neurons:
        return first.logits.new_full((images, GROUPS), math.nan, dtype=torch.float64)
    mine, theirs = first.neurons[pair.number], second.neurons[pair.other]
    mine, theirs = wide(mine.reshape(images, -1, count)), wide(theirs)
    theirs = theirs.reshape(images, -1, theirs.shape[-1])
    if len(pair.mine) < count:
        mine = mine[..., pair.mine]
    if len(pair.theirs) < theirs.shape[-1]:
        theirs = theirs[..., pair.theirs]
    member_nG = groups_of([pair.numbers[at] for at in pair.mine], max(pair.numbers) + 1).to(
        mine.device
    )
    apart, length = (part.square().sum(1).double() @ member_nG for part in (theirs - mine, mine))
    found = ratio(apart, length)
    return found.masked_fill(member_nG.sum(0) == 0, math.nan)


def groups_of(numbers: Sequence[int], count: int) -> Tensor:
    """(n, G) float64, 1 for the group that a neuron of ``count`` belongs to."""
    group = torch.tensor([GROUPS * number // count for number in numbers])
    return torch.nn.functional.one_hot(group, GROUPS).double()
