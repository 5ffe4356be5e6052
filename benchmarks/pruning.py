"""What removal really gains: four blocks of DeiT-S at 224 pixels, half of the heads gone; torch-pruning beside it.

And of heads and neurons, priced by a table of latency: whether a network is as fast as the table
says, and what it costs when widths of MLPs are odd.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence

import timm
import torch
from torch import Tensor, nn

from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare, from_rounds
from mhprobe.backbones import attach, family_of, layout_of
from mhprobe.heads import KINDS
from mhprobe.masking.random import Random
from mhprobe.pruning.on_path import OnPath
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.surgery.costs import count_flops, interleaved, latency_cost, same_share_everywhere
from mhprobe.surgery.removal import prune_heads


def run(size: Size) -> Iterator[Ratio]:
    torch.manual_seed(0)
    side, batch, depth = size.pick(
        (32, 2, 1), (224, 64, 4)
    )  # the ratio does not depend on the depth
    dense = timm.create_model("deit_small_patch16_224", img_size=side, depth=depth).eval()
    half = same_share_everywhere(layout_of(dense), 0.5)
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
    yield from _heads_and_neurons(dense, images, size.pick(0.97, 0.5), size.rounds(7))
    if importlib.util.find_spec("torch_pruning"):
        whole = timm.create_model(
            "deit_small_patch16_224", img_size=side, depth=size.pick(1, 12)
        ).eval()
        yield _beside_torch_pruning(whole, images[:1], size.rounds(9))


def _over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _heads_and_neurons(
    dense: nn.Module, images: Tensor, share: float, rounds: int
) -> Iterator[Ratio]:
    """So much of the FLOPs is left, and so much of the time by a table of latency: is it as fast as that?"""
    layout = attach(gated := copy.deepcopy(dense), units=KINDS).layout
    nobody = Evaluator(gated, lambda: [], 0)  # random units: no image chooses
    for unit, limit in (("flops", ">= 0.85"), ("latency", ">= 0.95")):
        with tempfile.TemporaryDirectory() as folder:
            table = f"{folder}/latency.json" if unit == "latency" else None
            if table:
                latency_cost(table, gated, layout, images, repeats=7)  # what ``source`` finds there
            source = OnPath(Random(repeats=1), target={unit: share}, latency_table=table)
            choice, left = source.choose(gated, nobody, lambda: images, layout, 1.0, 1.0)
        pruned = prune_heads(dense, choice.mask, units=KINDS)
        dense_s, pruned_s = interleaved(
            [functools.partial(model, images) for model in (dense, pruned)], rounds, 0
        )
        what = f"heads and neurons, half of the {unit}, batch {len(images)}: speed-up / predicted"
        yield from_rounds(what, [ratio * left for ratio in _over(dense_s, pruned_s)], limit)
    odd, eighths = (
        prune_heads(dense, same_share_everywhere(layout, 0.5, multiple), units=KINDS)
        for multiple in (1, 8)
    )
    what = "  half of the neurons of each MLP and one more gone, over half (a multiple of 8): time of a forward pass"
    works = [functools.partial(model, images) for model in (odd, eighths)]
    yield from_rounds(what, _over(*interleaved(works, rounds, 0)))


def _beside_torch_pruning(model: nn.Module, image: Tensor, rounds: int) -> Ratio:
    """Half of the heads and neurons, removed through its graph and by us: the same logits, and how long it takes.

    Both copy the model: its groups are pruned in place. In CPU seconds: both are milliseconds of
    one thread.
    """
    import torch_pruning as tp

    layout = layout_of(model, KINDS)
    mask = same_share_everywhere(layout, 0.5)

    def theirs() -> nn.Module:
        pruned = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # parameters outside modules: it would prune them for other groups
            graph = tp.DependencyGraph().build_dependency(pruned, example_inputs=image)
        for site, gone in zip(layout.sites, layout.split(mask), strict=True):
            part = pruned.get_submodule(site.name)
            units = torch.nonzero(gone).flatten().tolist()
            channels = [unit * site.head_dim + i for unit in units for i in range(site.head_dim)]
            output = family_of(pruned).seam(pruned, site).output
            graph.get_pruning_group(output, tp.prune_linear_in_channels, channels).prune()
            if site.kind == "head":
                part.num_heads -= len(units)
                part.attn_dim = part.num_heads * site.head_dim
        return pruned

    def ours() -> nn.Module:
        return prune_heads(model, mask, units=KINDS)

    removed, smaller = theirs(), ours()
    with torch.no_grad():
        difference = (removed(image) - smaller(image)).abs().max().item()
    assert difference < 1e-5 and count_flops(removed, image) == count_flops(smaller, image), (
        difference
    )
    what = "  beside it: time of removing them and as many neurons, torch-pruning / mhprobe (the same logits)"
    return compare(what, theirs, ours, rounds, ">= 5", clock=time.process_time)
