"""Beside another package that removes the same heads."""

from __future__ import annotations

import pytest
import torch

import mhprobe
import mhprobe.prune
from mhprobe.backbones import layout_of
from models import images_for, tiny_vit
from pruned import logits


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:Unwrapped parameters")
def test_torch_pruning_removing_the_same_heads_gives_the_same_logits():
    tp = pytest.importorskip("torch_pruning")
    model, theirs, removed = tiny_vit(), tiny_vit(), [1, 3, 4]  # its graph cannot follow norms of queries and keys
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
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items())
