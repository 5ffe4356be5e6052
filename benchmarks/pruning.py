"""What removal really gains: four blocks of DeiT-S at 224 pixels, half of the heads gone; torch-pruning beside it."""

from __future__ import annotations

import copy
import functools
import importlib.util
import warnings
from collections.abc import Iterator, Sequence

import timm
import torch
from torch import Tensor, nn

from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, from_rounds
from mhprobe.backbones import attach, layout_of
from mhprobe.surgery.costs import count_flops, interleaved
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.speed import evenly


def run(size: Size) -> Iterator[Ratio]:
    torch.manual_seed(0)
    side, batch, depth = size.pick((32, 2, 1), (224, 64, 4))  # the ratio does not depend on the depth
    dense = timm.create_model("deit_small_patch16_224", img_size=side, depth=depth).eval()
    half = evenly(layout_of(dense), 0.5)
    masked, pruned = copy.deepcopy(dense), prune_heads(dense, half)
    gates, images = attach(masked), torch.randn(batch, 3, side, side)
    predicted = count_flops(dense, images[:1]) / count_flops(pruned, images[:1])
    with gates.masked(half):
        works = [functools.partial(model, images) for model in (dense, masked, pruned)]
        dense_s, masked_s, pruned_s = interleaved(works, size.rounds(7), seconds=0)
    what = f"half of the heads removed, batch {batch}: speed-up / predicted by FLOPs"
    expected_s = [second * predicted for second in pruned_s]
    yield from_rounds(what, _over(dense_s, expected_s), ">= 0.85", f"predicted {predicted:.3g}")
    yield from_rounds("  forward pass: masked / pruned", _over(masked_s, pruned_s), ">= 1")
    if importlib.util.find_spec("torch_pruning"):
        yield _beside_torch_pruning(dense, half, images[:1], size.rounds(5))


def _over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _beside_torch_pruning(model: nn.Module, mask: Tensor, image: Tensor, rounds: int) -> Ratio:
    """The same heads, removed through its dependency graph and by us: the same logits, and how long removing takes."""
    import torch_pruning as tp

    layout = layout_of(model)

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
    return compare(what, theirs, lambda: prune_heads(model, mask), rounds)
