"""Remove heads from the weights: prune_heads() makes a smaller timm model with the masked model's logits.

A head goes with its rows of W_Q, W_K, W_V and its columns of W_O (Swin: also its column of position
biases). Norms of queries and keys are shared by all heads and stay. A neuron goes with its row of
the MLP's first linear layer (gated
MLP: one row in each half) and its column of the last. timm's own forward runs on the result;
backbones/parts/narrow.py has the modules that stand where timm's cannot hold fewer heads, or none.

Shapes: A heads of all sites, H heads of one site, D head width, B images, C classes.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhprobe.backbones import (
    backbone_of,
    family_of,
    kinds_of,
    layout_of,
    refuse_no_model,
    slice_sites,
)
from mhprobe.backbones.parts.units import uncuttable
from mhprobe.errors import UserError, one_of, quoted
from mhprobe.gates import find_gates, remove_gates
from mhprobe.gates.fill import Fill
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import KINDS, HeadLayout, HeadSite, Kind
from mhprobe.recording.outputs import broken, refuse_broken

ProjBias = Literal["keep", "drop"]


@torch.inference_mode(False)  # the copy may be trained
def prune_heads(
    model: nn.Module,
    mask: Tensor | Sequence[int] | Sequence[tuple[int, int]],
    proj_bias: ProjBias = "keep",
    fold: Fill | None = None,
    units: Collection[Kind] | None = None,
) -> nn.Module:
    """Return a smaller copy of ``model`` without the heads in ``mask``; its logits are the masked model's.

    model: a model of a supported family, with or without gates, dense or already pruned. It does
    not change.
    mask: (A,) bool, True = off; or heads to remove, as flat indices or (site, head) pairs (see
    ``HeadLayout.mask``).
    proj_bias: of a layer that loses all heads: "keep" equals the mask, "drop" sets it to zero and
    changes the logits.
    fold: a constant per removed head (``recording.fills``: mean, optimal), added to the
        projection's bias. The logits are those of the mask with this fill. It may have constants of
        units that the mask does not count.
    units: kinds that the mask counts, e.g. {"head", "neuron"}. None: the kinds that have gates on
    ``model``, or heads.

    The copy has no gates: gates of kept heads are multiplied into W_O. ``attach`` works on it as on
    any model. Raises UserError for an unsupported family, a mask of another shape or of all heads,
    and a ``fold`` without a bias.

    >>> import mhprobe, timm
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3)
    >>> model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    >>> small = prune_heads(model, [(0, 0), (1, 1)])
    >>> [block.attn.num_heads for block in small.blocks]
    [2, 2]
    >>> images, gates = torch.randn(2, 3, 16, 16), mhprobe.attach(model)
    >>> with torch.no_grad(), gates.masked(gates.layout.mask([0, 4])):
    ...     masked = model(images)
    >>> torch.allclose(small(images), masked, atol=1e-5)
    True
    """
    one_of("prune_heads", "proj_bias", proj_bias, ProjBias)
    refuse_no_model("prune_heads", model)
    if not (fold is None or isinstance(fold, Fill)):
        raise UserError(
            "prune_heads: fold: expected a fill (recording.fills.find_fill) or None, got "
            f"{quoted(fold)}."
        )
    refuse_unprunable(model, units)
    layout = layout_of(model, units)
    mask = layout.mask(mask.cpu() if isinstance(mask, Tensor) else mask)
    if mask.all():
        raise UserError(
            f"prune_heads: the mask empties the model: it removes all {layout.counted}. Keep at "
            "least one."
        )
    gates = find_gates(model)
    pruned = copy.deepcopy(model)
    remove_gates(pruned)
    if gates is not None:
        _fold(pruned, gates.layout, gates.effective())
    if fold is not None:
        _fold_constants(pruned, layout, mask, fold)
    kept = layout.kept(mask)
    if proj_bias == "drop":
        drop_bias(pruned, [site for site in layout.sites if not kept[site.name]])
    slice_sites(pruned, layout, kept)
    return pruned


def refuse_unprunable(model: nn.Module, units: Collection[Kind] | None = None) -> None:
    """Raise UserError with the reason if ``units`` cannot be removed from ``model``; a cheap check.

    units: as for ``prune_heads``. Neurons can be removed from every family that has them.
    """
    try:
        family = family_of(model)
    except UserError as error:
        try:
            inside = backbone_of(model)
        except UserError:
            more = "Once a family says where its heads are they can be gated and masked; removing takes slice_heads."
            explained = str(error).endswith("Not supported.")  # why no family can know it
            raise UserError(f"prune_heads: {error}{'' if explained else ' ' + more}") from None
        refuse_unprunable(inside, units)
        raise UserError(f"prune_heads: {error}") from None
    if (reason := family.unprunable(model, kinds_of(model, units))) is not None:
        try:
            layout_of(model)
        except UserError as error:  # "can still be gated" would be wrong
            reason = str(error)
        raise UserError(f"prune_heads: {reason}")


def refuse_unfoldable(model: nn.Module) -> None:
    """Raise UserError with the reason if a constant cannot be added to the projections' biases."""
    family = family_of(model)
    for site in layout_of(model).sites:
        seam = family.seam(model, site)
        if seam.output.bias is None or seam.point is not seam.output:
            why = "has no bias" if seam.output.bias is None else "stands behind a norm"
            raise UserError(
                f"fold: the projection of {site.name} {why}, so a head's constant cannot move into "
                "its bias; use "
                f"fold=zero."
            )


def drop_bias(model: Any, sites: Iterable[HeadSite]) -> None:
    """Set the output projection's bias to zero, in place, at these sites; no training brings it back."""
    with torch.no_grad():
        for site in sites:
            if (bias := family_of(model).seam(model, site).output.bias) is not None:
                bias.zero_().requires_grad_(False)


def largest_difference(
    one: nn.Module, other: nn.Module, images: Iterable[Tensor]
) -> tuple[float, float]:
    """(largest |difference| of two models' logits over batches of images, largest |logit| of the first).

    In whole float32: TF32 rounds a thousand times as coarsely. UserError for logits that are NaN or
    infinite.
    """
    difference, size = 0.0, 0.0
    with torch.inference_mode(), _whole_float32():
        for batch in images:
            left = one(batch)
            right = other(batch)
            refuse_broken(
                broken(torch.stack([left, right])), "largest_difference: the output of a model"
            )
            difference = max(difference, (left - right).abs().max().item())
            size = max(size, left.abs().max().item())
    return difference, size


def _whole_float32() -> AbstractContextManager[None]:
    """Multiply float32 without TF32 inside a with block. torch before 2.9 has other switches for it."""
    backends: Any = torch.backends
    if not hasattr(backends.cudnn, "conv"):
        return meanwhile((backends.cuda.matmul, backends.cudnn), allow_tf32=False)
    products = (backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul)
    return meanwhile(products, fp32_precision="ieee")


def _fold_constants(model: nn.Module, layout: HeadLayout, mask: Tensor, fill: Fill) -> None:
    """Add what the projection makes of the constants of the heads in ``mask`` to its bias; gates are in its weights."""
    refuse_unfoldable(model)
    family = family_of(model)
    # a fill of heads and neurons serves either alone
    every = layout if len(fill.sites) == len(layout.sites) else layout_of(model, KINDS)
    constants = (
        dict(zip(every.sites, fill.sites, strict=False))
        if len(fill.sites) == len(every.sites)
        else {}
    )
    with torch.no_grad():
        for site, off_H in zip(layout.sites, layout.split(mask), strict=True):
            if (constant := constants.get(site)) is None or constant.numel() != site.channels:
                got = (
                    f"{len(fill.sites)} sites"
                    if constant is None
                    else f"{tuple(constant.shape)} numbers"
                )
                raise UserError(
                    f"prune_heads: fold takes a constant per head of {len(layout.sites)} sites, "
                    f"got {got}."
                )
            projection = family.seam(model, site).output
            instead = constant.flatten().double() * off_H.to(constant.device).repeat_interleave(
                site.head_dim
            )
            projection.bias.copy_(projection.bias.double() + projection.weight.double() @ instead)


def _fold(model: nn.Module, layout: HeadLayout, gates: Tensor) -> None:
    family = family_of(model)
    with torch.no_grad():
        for site, gate_H in zip(layout.sites, layout.split(gates), strict=True):
            seam = family.seam(model, site)
            if bool((gate_H != 1).any()) and (reason := uncuttable(model, [site])) is not None:
                raise UserError(
                    f"prune_heads: gates that are not 1 cannot go into the weights: {reason}"
                )
            seam.output.weight.mul_(gate_H.to(seam.output.weight).repeat_interleave(site.head_dim))
