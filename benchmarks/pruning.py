"""What removal really gains: four blocks of DeiT-S at 224 pixels, half of the heads gone; torch-pruning beside it."""

from __future__ import annotations

import copy
import functools
import importlib.util
import statistics
import warnings
from collections.abc import Sequence

import timm
import torch
from torch import Tensor, nn

from benchmarks.timing import Ratio, compare
from mhprobe.backbones import attach, layout_of
from mhprobe.surgery.costs import count_flops
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.speed import evenly, interleaved

BATCH, ROUNDS = 64, 7


def run() -> list[Ratio]:
    torch.manual_seed(0)
    dense = timm.create_model("deit_small_patch16_224", depth=4).eval()  # the ratio does not depend on the depth
    half = evenly(layout_of(dense), 0.5)
    masked, pruned = copy.deepcopy(dense), prune_heads(dense, half)
    gates, images = attach(masked), torch.randn(BATCH, 3, 224, 224)
    predicted = count_flops(dense, images[:1]) / count_flops(pruned, images[:1])
    with gates.masked(half):
        works = [functools.partial(model, images) for model in (dense, masked, pruned)]
        dense_s, masked_s, pruned_s = interleaved(works, ROUNDS, seconds=0)
    what = f"half of the heads removed, batch {BATCH}: speed-up / predicted by FLOPs ({predicted:.3g})"
    rows = [
        _ratio(what, dense_s, [second * predicted for second in pruned_s], ">= 0.85"),
        _ratio("  forward pass: masked / pruned", masked_s, pruned_s, ">= 1"),
    ]
    return rows + (_beside_torch_pruning(dense, half) if importlib.util.find_spec("torch_pruning") else [])


def _ratio(what: str, above: Sequence[float], below: Sequence[float], limit: str) -> Ratio:
    low, middle, high = statistics.quantiles([a / b for a, b in zip(above, below, strict=True)], n=4)
    return Ratio(what, middle, low, high, len(above), limit)


def _beside_torch_pruning(model: nn.Module, mask: Tensor) -> list[Ratio]:
    """The same heads, removed through its dependency graph and by us: the same logits, and how long removing takes."""
    import torch_pruning as tp

    layout, image = layout_of(model), torch.randn(1, 3, 224, 224)

    def theirs() -> nn.Module:
        pruned = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parameters outside modules: it would prune them for other groups
            graph = tp.DependencyGraph().build_dependency(pruned, example_inputs=image)
        for site, gone in zip(layout.sites, layout.split(mask), strict=True):
            attention = pruned.get_submodule(site.name)
            heads = torch.nonzero(gone).flatten().tolist()
            channels = [head * site.head_dim + i for head in heads for i in range(site.head_dim)]
            graph.get_pruning_group(attention.proj, tp.prune_linear_in_channels, channels).prune()
            attention.num_heads -= len(heads)
            attention.attn_dim = attention.num_heads * site.head_dim
        return pruned

    removed, ours = theirs(), prune_heads(model, mask)
    with torch.no_grad():
        difference = (removed(image) - ours(image)).abs().max().item()
    assert difference < 1e-5 and count_flops(removed, image) == count_flops(ours, image), difference
    what = "  beside it: time of removing them, torch-pruning / mhprobe (the same logits)"
    return [compare(what, theirs, lambda: prune_heads(model, mask), rounds=5)]
