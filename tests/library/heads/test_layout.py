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

RAGGED = HeadLayout(
    tuple(HeadSite(f"blocks.{n}.attn", 0, n, heads, 4) for n, heads in enumerate((2, 3, 4)))
)


@pytest.mark.parametrize(
    "heads",
    [
        [0, 4, 8],
        (0, 4, 8),
        np.array([0, 4, 8]),
        torch.tensor([0, 4, 8]),
        [(0, 0), (1, 2), (2, 3)],
        [[0, 0], [1, 2], [2, 3]],
        torch.tensor([[0, 0], [1, 2], [2, 3]]),
        torch.isin(torch.arange(9), torch.tensor([0, 4, 8])),
        [n in (0, 4, 8) for n in range(9)],
    ],
)
def test_every_way_to_name_heads_gives_the_same_mask(heads):
    assert RAGGED.mask(heads).nonzero().flatten().tolist() == [0, 4, 8]


def test_each_head_is_of_a_site_and_a_mask_leaves_the_others():
    assert RAGGED.site_of_head.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    left = {"blocks.0.attn": [1], "blocks.1.attn": [0, 1, 2], "blocks.2.attn": []}
    assert RAGGED.kept(RAGGED.mask([0, 5, 6, 7, 8])) == left


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


MASK = [0, 0, 0, 0, 0, 0, 0, 0, 1]  # head 8 is off; as a list of heads it would be heads 0 and 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
@pytest.mark.parametrize("values", [MASK, [0] * 9, [1] * 9])
def test_a_mask_of_whole_numbers_is_not_taken_for_a_list_of_heads(values, dtype):
    given = torch.tensor(values, dtype=dtype)
    for heads in (given, given.numpy(), given.tolist(), tuple(given.tolist())):
        with pytest.raises(UserError, match=r"may be a mask or a list of heads.*mask\.bool\(\)"):
            RAGGED.mask(heads)
    assert RAGGED.mask(given.bool()).tolist() == [value == 1 for value in values]


def test_a_mask_with_a_row_per_site_is_not_taken_for_pairs():
    two_each = HeadLayout(
        (*RAGGED.sites[:1], dataclasses.replace(RAGGED.sites[0], name="blocks.1.attn", block=1))
    )
    with pytest.raises(UserError, match="may be a mask"):
        two_each.mask(torch.tensor([[0, 1], [1, 1]]))
    assert two_each.mask([(0, 1), (1, 1)]).tolist() == [False, True, False, True]
    assert two_each.mask([0, 1]).tolist() == [
        True,
        True,
        False,
        False,
    ]  # two numbers of four heads are a list
    one_site = HeadLayout(RAGGED.sites[:1])
    assert one_site.mask([0, 1]).all() and one_site.mask([1]).tolist() == [False, True]
    with pytest.raises(UserError, match="may be a mask"):
        one_site.mask(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("heads", "got"),
    [
        ([3, 5, 3], "got 3 2 times"),
        ([(1, 1), (0, 0), (1, 1)], "got 3 2 times"),
        ([1, 1, 1], "got 1 3 times"),
    ],
)
def test_a_head_that_is_named_twice_is_a_mistake(heads, got):
    with pytest.raises(UserError, match=f"expected each head once, {got}"):
        RAGGED.mask(heads)


@pytest.mark.parametrize("heads", [[0, True], [False, 3], (1, 2, True)])
def test_bool_among_numbers_is_neither(heads):
    with pytest.raises(UserError, match="head indices are whole numbers"):
        RAGGED.mask(heads)


def test_indices_keep_the_order_in_which_heads_were_named():
    assert RAGGED.indices([8, 0, 4]) == RAGGED.indices([(2, 3), (0, 0), (1, 2)]) == [8, 0, 4]
    with pytest.raises(UserError, match="some: head indices are whole numbers"):
        RAGGED.indices(RAGGED.mask([1]), "some")


def test_masks_of_whole_numbers_stop_gates_and_surgery_before_they_change_anything():
    model = tiny_vit()
    gates, number_mask = mhprobe.attach(model), torch.tensor([0, 0, 0, 0, 0, 1])
    for act in (lambda: mhprobe.prune_heads(model, number_mask), lambda: gates.close(number_mask)):
        with pytest.raises(UserError, match="may be a mask"):
            act()
    with pytest.raises(UserError, match="may be a mask"), gates.masked(number_mask):
        pass
    assert bool((gates.effective() == 1).all())
    assert mhprobe.prune_heads(model, number_mask.bool()).kept_heads["blocks.1.attn"] == [0, 1]


@pytest.mark.parametrize(
    "values", [torch.ones(6, dtype=torch.bool), torch.ones(1), torch.ones(6, 1)]
)
def test_gates_take_a_number_for_each_head_and_no_mask(values):
    gates = mhprobe.attach(tiny_vit())
    with (
        pytest.raises(
            UserError, match=r"gates\.fixed: values: expected a tensor of 6 finite numbers"
        ),
        gates.fixed(values),
    ):
        pass


def test_prune_heads_takes_pairs():
    model = tiny_swin()
    by_pairs, by_index = (
        mhprobe.prune_heads(model, [(0, 1), (2, 2)]),
        mhprobe.prune_heads(model, [1, 6]),
    )
    images = images_for(model, 2)
    assert torch.equal(by_pairs(images), by_index(images))
    assert not torch.allclose(by_pairs(images), model(images))


def test_the_digest_tells_layouts_apart():
    layout = mhprobe.attach(tiny_vit()).layout
    assert layout.digest == mhprobe.attach(tiny_vit(seed=1)).layout.digest
    assert len(layout.digest) == 8 and int(layout.digest, 16) >= 0
    first, *others = RAGGED.sites
    changed = [{"name": "blocks.0.attention"}, {"num_heads": 3}, {"head_dim": 5}]
    digests = {
        HeadLayout((dataclasses.replace(first, **change), *others)).digest for change in changed
    }
    assert len(digests | {RAGGED.digest, layout.digest}) == 5


def test_the_digest_is_the_same_next_year():
    assert RAGGED.digest == "6a789418"


def test_gates_and_batches_say_in_one_line_what_they_are():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    gates.close(gates.layout.mask([1, 4, 5]))
    assert repr(gates) == "HeadGates(6 heads in 2 sites, 3 closed)"
    batch = mhprobe.record(model, images_for(model, 3), labels_for(3), needs={"grad", "attn"})
    assert (
        repr(batch) == "HeadBatch(3 images, 2 sites; z, logits, valid, labels, grad, attn, images)"
    )
