from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mhprobe.stats.agreement import lowest


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(0, 12))
def test_the_lowest_are_chosen_and_of_equal_ones_the_first(scores, count):
    expected = sorted(range(len(scores)), key=lambda place: (scores[place], place))[:count]
    assert lowest(torch.tensor(scores).double(), count).nonzero().flatten().tolist() == sorted(
        expected
    )


def test_shares_of_the_heads_go_ties_by_index():
    score = torch.tensor([3.0, 1.0, 1.0, 0.0])
    masks = [lowest(score, round(share * len(score))) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [
        [],
        [3],
        [1, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
    ]


def test_nan_goes_last():
    assert lowest(torch.tensor([torch.nan, 2.0, 1.0]), 2).tolist() == [False, True, True]
