"""Beside another package that removes the same heads."""

from __future__ import annotations

import pytest
import torch

import mhprobe
import mhprobe.prune
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS
from models import images_for, tiny_swin, tiny_tokens, tiny_vit
from pruned import logits, shown


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
def test_torch_pruning_removing_the_same_heads_gives_the_same_logits():
    tp = pytest.importorskip("torch_pruning")
    model, theirs, removed = (
        tiny_vit(),
        tiny_vit(),
        [1, 3, 4],
    )  # its graph cannot follow norms of queries and keys
    layout, images = layout_of(model), images_for(model, 4)
    graph = tp.DependencyGraph().build_dependency(theirs, example_inputs=images)
    for site, mask in zip(layout.sites, layout.split(layout.mask(removed)), strict=True):
        heads = torch.nonzero(mask).flatten().tolist()
        attention = theirs.get_submodule(site.name)
        channels = [head * site.head_dim + i for head in heads for i in range(site.head_dim)]
        graph.get_pruning_group(attention.proj, tp.prune_linear_in_channels, channels).prune()
        attention.num_heads -= len(heads)
        attention.attn_dim = attention.num_heads * site.head_dim
    ours = mhprobe.prune_heads(model, removed)
    assert torch.equal(logits(theirs, images), logits(ours, images))
    assert not torch.allclose(logits(ours, images), logits(model, images), atol=1e-4)
    assert all(
        torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items()
    )


@pytest.mark.peer
def test_torch_pruning_is_not_asked_for_a_gated_mlp_that_it_cannot_cut():
    pytest.importorskip("torch_pruning")
    from mhprobe.lab.prunebench.peer import TorchPruning

    model, _, images = shown(KINDS, tiny_tokens("vit_giant_patch14_dinov2"))
    with pytest.raises(
        mhprobe.UserError, match=r"^torch_pruning cannot cut blocks\.0\.mlp, .* heads alone, or"
    ):
        TorchPruning("magnitude").choose(model, images, {"flops": 0.8})


@pytest.mark.peer
@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_torch_pruning_takes_heads_of_a_swin_too_and_says_how_far_it_goes(build):
    """Its graph held a head's channels for columns of the table of position biases, and took no head of a Swin."""
    pytest.importorskip("torch_pruning")
    from mhprobe.lab.prunebench.peer import TorchPruning

    model, layout, images = shown(KINDS, build(num_heads=(4, 4) if build is tiny_swin else 4))
    method = TorchPruning("magnitude")
    mask = method.choose(model, images, {"flops": 0.7})
    assert mask[: layout.of("head").num_heads].any() and mask[layout.of("head").num_heads :].any()
    with pytest.raises(
        mhprobe.UserError,
        match=r"takes no layer whole and leaves flops=0\.\d+ or more.*at most 0.12",
    ):
        method.choose(model, images, {"flops": 0.12})
