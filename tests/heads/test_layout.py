"""One numbering of heads: flat indices, (site, head) pairs and masks say the same, and anything else is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import mhprobe
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from models import images_for, labels_for, tiny_swin, tiny_vit

RAGGED = HeadLayout(tuple(HeadSite(f"blocks.{n}.attn", 0, n, heads, 4) for n, heads in enumerate((2, 3, 4))))


@pytest.mark.parametrize(
    "heads",
    [[0, 4, 8], (0, 4, 8), np.array([0, 4, 8]), torch.tensor([0, 4, 8]), [(0, 0), (1, 2), (2, 3)],
     [[0, 0], [1, 2], [2, 3]], torch.tensor([[0, 0], [1, 2], [2, 3]]),
     torch.isin(torch.arange(9), torch.tensor([0, 4, 8])), [n in (0, 4, 8) for n in range(9)]],
)  # fmt: skip
def test_every_way_to_name_heads_gives_the_same_mask(heads):
    assert RAGGED.mask(heads).nonzero().flatten().tolist() == [0, 4, 8]


def test_no_heads_are_no_heads():
    assert not RAGGED.mask([]).any()


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ([9], "whole numbers from 0 to 8, or .site, head. pairs, got .9."),
        ([-1], "whole numbers"),
        ([0.5], "whole numbers"),
        ([1.0], "whole numbers"),
        (3, "whole numbers"),
        ("3", "whole numbers"),
        (["a"], "whole numbers"),
        ([(0, 1), 2], "whole numbers"),
        ([(0, 1, 2)], "whole numbers"),
        (torch.zeros(2, 2, 2, dtype=torch.long), "whole numbers"),
        ([(0, 2)], r"blocks\.0\.attn has heads 0 to 1, got 2"),
        ([(3, 0)], "sites 0 to 2, got 3"),
        ([(-1, 0)], "sites 0 to 2, got -1"),
        ([True, False], r"expected shape \(9,\)"),
        (torch.zeros(9, 1, dtype=torch.bool), r"expected shape \(9,\)"),
    ],
)
def test_anything_else_is_refused(heads, reason):
    with pytest.raises(UserError, match=reason):
        RAGGED.mask(heads)


def test_prune_heads_takes_pairs():
    model = tiny_swin()
    by_pairs, by_index = mhprobe.prune_heads(model, [(0, 1), (2, 2)]), mhprobe.prune_heads(model, [1, 6])
    images = images_for(model, 2)
    assert torch.equal(by_pairs(images), by_index(images))
    assert not torch.allclose(by_pairs(images), model(images))


def test_the_digest_tells_layouts_apart():
    layout = mhprobe.attach(tiny_vit()).layout
    assert layout.digest == mhprobe.attach(tiny_vit(seed=1)).layout.digest
    assert len(layout.digest) == 8 and int(layout.digest, 16) >= 0
    first, *others = RAGGED.sites
    changed = [{"name": "blocks.0.attention"}, {"num_heads": 3}, {"head_dim": 5}]
    digests = {HeadLayout((dataclasses.replace(first, **change), *others)).digest for change in changed}
    assert len(digests | {RAGGED.digest, layout.digest}) == 5


def test_the_digest_is_the_same_next_year():
    assert RAGGED.digest == "6a789418"


def test_gates_and_batches_say_in_one_line_what_they_are():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    gates.close(gates.layout.mask([1, 4, 5]))
    assert repr(gates) == "HeadGates(6 heads in 2 sites, 3 closed)"
    batch = mhprobe.record(model, images_for(model, 3), labels_for(3), needs={"grad", "attn"})
    assert repr(batch) == "HeadBatch(3 images, 2 sites; z, logits, valid, labels, grad, attn, images)"
