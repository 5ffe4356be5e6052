"""Least-squares repair: the kept heads' output weights are changed so that each layer writes what it wrote before.

Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", arXiv 2204.09656,
section 4.3 (mask tuning). Layer by layer, || pruned layer - whole layer ||^2 is minimised over
unlabelled training images; the pruned layer is fed by the pruned layers before it. They solve for
one factor per kept head (``per="head"`` here).

Where we differ: ``per="weights"`` solves for the whole projection and its bias. The residual stream
is left out of both sides (their target also makes up for errors of earlier layers). The solution
comes from second moments in float64, not LSMR. A ridge keeps it near the present weights, where
they clamp factors to [-10, 10] and give up on such layers.

Shapes: N rows (tokens of all images), K kept channels of a site, H kept heads, D head width, C
output channels.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.base import Segments
from mhprobe.errors import UserError, fits, one_of, quoted
from mhprobe.heads import KINDS, HeadLayout, HeadSite
from mhprobe.io.progress import progress
from mhprobe.measures.parts.moments import Moments, symmetric
from mhprobe.recording.state import inspecting
from mhprobe.surgery.removal import ProjBias

Per = Literal["head", "weights"]


class _Entering(NamedTuple):
    """Tensors that enter a block, in both networks, of a number of images."""

    images: int
    pruned: Tensor
    whole: Tensor


@torch.no_grad()
def repair(
    pruned: nn.Module,
    dense: nn.Module,
    batches: Callable[[], Iterable[Tensor]],
    per: Per = "weights",
    ridge: float = 1e-4,
    proj_bias: ProjBias = "keep",
) -> None:
    """Change, in place, the output projections of ``pruned`` so that its layers write what those of ``dense`` do.

    dense: the model before pruning, with its gates if it has any. Only layers that lost heads
        change; in a layer without heads the bias becomes the mean of its output.
    batches: starts a walk over batches of images, without padding images; their residual streams
        are all held.
    per: "head" scales each kept head, "weights" solves for all columns of the projection and its
        bias.
    ridge: pull towards the present weights, relative to the mean square of the layer's inputs; 0
        for none.
    proj_bias: as it was for ``prune_heads``; with "drop" a layer without heads goes on writing
        nothing.

    Raises UserError for a ``dense`` without gates on units that ``pruned`` has lost: their layers
    would stay as they are.
    """
    _refuse_options(per, ridge, batches)
    layout = layout_of(dense)
    _refuse_hidden(pruned, dense, layout)
    heads = _heads_left(pruned, layout)
    lost = list(heads) if proj_bias == "keep" else [site for site, left in heads.items() if left]
    if not lost:
        return
    show = progress("repairing", len(lost), "layers")
    with inspecting(pruned, gradients=False), inspecting(dense, gradients=False), show as done:
        ours = _pieces(pruned)
        theirs = _pieces(dense)
        streams = _streams(ours, theirs, batches())
        for number, (mine, whole_block) in enumerate(zip(ours.blocks, theirs.blocks, strict=True)):
            for site in _sites_of_block(lost, number, len(ours.blocks)):
                written = _Layer(site, mine, family_of(pruned).seam(pruned, site).output)
                wanted = _Layer(site, whole_block, family_of(dense).seam(dense, site).output)
                moments = _moments(written, wanted, streams)
                by_head = per == "head" and heads[site] > 0
                _solve(written, moments, ridge, by_head)
                done(1)
            streams = [_Entering(of, mine(x), whole_block(y)) for of, x, y in streams]


class _Layer(NamedTuple):
    """A site, the block that it is in, and its output projection."""

    site: HeadSite
    block: Callable[[Tensor], Tensor]
    projection: Any


def _streams(ours: Segments, theirs: Segments, batches: Iterable[Tensor]) -> list[_Entering]:
    """Return what enters the first block of both networks. UserError for no images."""
    streams = [_Entering(len(x), ours.stem(x), theirs.stem(x)) for x in filter(len, batches)]
    if not streams:
        raise UserError("repair: no images to repair with, expected at least one.")
    return streams


def _sites_of_block(lost: Sequence[HeadSite], number: int, blocks: int) -> list[HeadSite]:
    """Return the sites of a block: the attention first, then the MLP behind it. blocks: one holds all sites."""
    return [site for site in lost if site.block == number or blocks == 1]


def _moments(written: _Layer, wanted: _Layer, streams: Iterable[_Entering]) -> Moments:
    """Return second moments over all tokens: of what enters the pruned projection beside what the whole one writes."""
    weight = written.projection.weight
    moments = Moments.zeros(1, sum(weight.shape[:2]), weight.device)
    with _passing(written.projection, wanted.projection) as seen:
        for images, x, y in streams:
            written.block(x)
            wanted.block(y)
            moments.add(_joined(written.site, seen, images))
    return moments


def _solve(layer: _Layer, moments: Moments, ridge: float, by_head: bool) -> None:
    """Change the projection of a layer, in place. by_head: by a factor for each of its heads."""
    if by_head:
        _solve_factors(layer.projection, moments, layer.site.head_dim, ridge)
    else:
        _solve_weights(layer.projection, moments, ridge)


def _refuse_options(per: Per, ridge: float, batches: Any) -> None:
    one_of("repair", "per", per, Per)
    if not fits(ridge, float) or ridge < 0:
        raise UserError(f"repair: ridge is a number from 0, got {quoted(ridge)}.")
    if not callable(batches):
        raise UserError(f"repair: batches is a function, as lambda: loader, got {quoted(batches)}.")


def _heads_left(pruned: nn.Module, layout: HeadLayout) -> dict[HeadSite, int]:
    """The number of units that ``pruned`` has left at each site that lost some. layout: of the dense one."""
    left = {site.name: site.num_heads for site in layout_of(pruned, layout.kinds).sites}
    numbers = {site: left.get(site.name, 0) for site in layout.sites}
    return {site: number for site, number in numbers.items() if number < site.num_heads}


def _joined(site: HeadSite, seen: Mapping[str, Tensor], images: int) -> Tensor:
    """The input of the pruned projection beside the output of the whole one, a row for each token."""
    return torch.cat([_rows(site, seen[key], images) for key in ("input", "output")], 1)


def _refuse_hidden(pruned: nn.Module, dense: nn.Module, whole: HeadLayout) -> None:
    """Raise UserError if ``pruned`` lost units of a kind on which ``dense`` has no gates."""
    kept: dict[str, list[int]] = getattr(pruned, "kept_heads", {})
    hidden = set(kept) - {site.name for site in whole.sites}
    if not hidden:
        return
    sites = [site for site in layout_of(dense, KINDS).sites if site.name in hidden]
    lost = [site for site in sites if len(kept[site.name]) < site.num_heads]
    if lost:
        kind = lost[0].kind
        raise UserError(
            f"repair: the pruned network has lost {kind}s of {lost[0].name}, and the dense one has "
            f"no gates on its {kind}s. Expected the dense network with the gates that it was pruned "
            f"by: mhprobe.attach(dense, units={{'{kind}', ...}}) before repair."
        )


def _pieces(model: nn.Module) -> Segments:
    return family_of(model).segments(model) or Segments(nn.Identity(), (model,), nn.Identity())


@contextlib.contextmanager
def _passing(before: nn.Module, after: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keep the input of ``before`` and the output of ``after`` of each forward pass, as "input" and "output"."""
    seen: dict[str, Tensor] = {}
    keep = seen.__setitem__
    with (
        before.register_forward_pre_hook(lambda _, args: keep("input", args[0])),
        after.register_forward_hook(lambda _, args, out: keep("output", out)),
    ):
        yield seen


def _rows(site: HeadSite, x: Tensor, images: int) -> Tensor:
    """(B * windows, tokens, K) -> (N, K): without the rows that only pad a window, which the block throws away."""
    rows = x.unflatten(0, (images, -1)).flatten(1, 2)
    if site.windows is not None:
        rows = rows[:, site.windows.rows().to(x.device)]
    return rows.flatten(0, 1)


def _means(moments: Moments, inputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means over rows of inputs x (K), of targets y (C), of x x^T (K, K) and of y x^T (C, K)."""
    (rows,), (total,), (outer,) = moments.rows, moments.total, moments.outer
    products = symmetric(outer) / rows
    return (
        total[:inputs] / rows,
        total[inputs:] / rows,
        products[:inputs, :inputs],
        products[inputs:, :inputs],
    )


def _solve_weights(projection: Any, moments: Moments, ridge: float) -> None:
    """argmin over W, b of |W x + b - y|^2 / N + ridge |W - W_0|^2: on centred moments, for the change W - W_0."""
    weight_CK, has_bias = projection.weight.double(), projection.bias is not None
    x, y, xx, yx = _means(moments, projection.in_features)
    if has_bias:
        xx = xx - torch.outer(x, x)
        yx = yx - torch.outer(y, x)
    weight_CK = weight_CK + _solved(xx, yx - weight_CK @ xx, ridge)
    projection.weight.copy_(weight_CK)
    if has_bias:
        projection.bias.copy_(y - weight_CK @ x)


def _solve_factors(projection: Any, moments: Moments, head_dim: int, ridge: float) -> None:
    """argmin over s of |sum_h s_h W_h x_h + b - y|^2 / N + ridge |s - 1|^2; the factors s go into W."""
    weight_CK, per_head = projection.weight.double(), (-1, head_dim)
    x, _, xx, yx = _means(moments, projection.in_features)
    # <W_g x_g, W_h x_h> summed over rows, from the moments of x alone
    gram_HH = (
        ((weight_CK.mT @ weight_CK) * xx).unflatten(0, per_head).unflatten(2, per_head).sum((1, 3))
    )
    if projection.bias is not None:
        yx = yx - torch.outer(projection.bias.double(), x)
    target_H = (weight_CK * yx).sum(0).unflatten(0, per_head).sum(1)
    factor_H = 1 + _solved(gram_HH, (target_H - gram_HH.sum(1))[None], ridge)[0]
    projection.weight.copy_(weight_CK * factor_H.repeat_interleave(head_dim))


def _solved(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """X in X (gram + ridge * mean diagonal) = right, the smallest one where the Gram matrix is singular."""
    if not len(gram):
        return right
    regular = gram + ridge * gram.diagonal().mean() * torch.eye(
        len(gram), dtype=gram.dtype, device=gram.device
    )
    return right @ torch.linalg.pinv(regular, hermitian=True)
