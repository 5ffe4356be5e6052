from __future__ import annotations

import itertools
import math

import pytest
import torch

import mhprobe
from attention import batch_of, even, looking, run, swin_layout, vit_layout
from mhprobe.measures.attention_distance import AttentionDistance
from models import images_for, tiny_swin, tiny_vit
from oracles import attention_distance as oracle


def test_one_hot_maps_look_exactly_as_far_as_their_offset():
    layout = vit_layout(grid=(4, 4), pixels=(16.0, 8.0))  # oblong patches
    for dy, dx in ((0, 0), (0, 1), (2, 0), (1, 3)):
        reach = (4 - dy) * (4 - dx)  # the others look at themselves
        expected = math.hypot(16 * dy, 8 * dx) * reach / 16
        assert run(AttentionDistance(layout), batch_of(*looking(layout, dy, dx)))[
            "value"
        ].item() == pytest.approx(expected)


def test_even_attention_looks_as_far_as_the_mean_of_all_pairs():
    layout = vit_layout(grid=(3, 5), pixels=(4.0, 7.0))  # oblong patches
    cells = list(itertools.product(range(0, 3 * 4, 4), range(0, 5 * 7, 7)))
    expected = sum(math.dist(a, b) for a in cells for b in cells) / 15**2
    got = run(AttentionDistance(layout), batch_of(*even(layout)))
    assert got["value"].item() == pytest.approx(expected, rel=1e-12)
    assert got["uniform"].item() == pytest.approx(expected, rel=1e-12)
    assert got["whole"].item() == pytest.approx(expected, rel=1e-12)
    assert got["raw"].item() == pytest.approx(
        expected * 15 / 16, rel=1e-12
    )  # a sixteenth goes to the class token


def test_raw_rows_spend_weight_on_all_of_the_prefix():
    layout = vit_layout(grid=(3, 5), prefix=3)
    got = run(AttentionDistance(layout), batch_of(*even(layout)))
    torch.testing.assert_close(got["value"], got["renormalised"])
    torch.testing.assert_close(got["raw"], got["value"] * 15 / 18)


def test_in_swin_even_attention_is_measured_inside_shift_regions():
    layout = swin_layout()
    got = run(AttentionDistance(layout), batch_of(*even(layout)))
    torch.testing.assert_close(got["value"], got["uniform"])

    def mean_pair(height, width):
        cells = list(itertools.product(range(height), range(width)))
        return 4 * sum(math.dist(a, b) for a in cells for b in cells) / len(cells) ** 2

    shifted = (mean_pair(4, 4) + 2 * mean_pair(2, 4) + mean_pair(2, 2)) / 4
    assert got["value"].tolist() == pytest.approx([mean_pair(4, 4), shifted], rel=1e-12)


def test_attention_on_the_class_token_shortens_raw_distances_only():
    layout = vit_layout(grid=(2, 2))
    (attn,) = even(layout)
    attn[..., 1:, :] *= 0.1
    attn[..., 1:, 0] += 0.9
    got = run(AttentionDistance(layout), batch_of(attn))
    torch.testing.assert_close(got["renormalised"], got["uniform"])
    assert got["raw"] < 0.15 * got["renormalised"]


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])  # this Swin is padded as well as shifted
def test_both_variants_agree_with_pairs_added_up_one_by_one(build):
    model = build().double()
    images = images_for(model, 2, dtype=torch.float64)
    layout = mhprobe.attach(model).layout
    sites = [(s.name, s.num_heads) for s in layout.sites]
    got = run(AttentionDistance(layout), mhprobe.record(model, images, needs={"attn"}))
    for column, renormalise in (("value", True), ("renormalised", True), ("raw", False)):
        expected = oracle.distances(model, images, sites, renormalise)
        torch.testing.assert_close(got[column], expected, rtol=1e-10, atol=0)


def test_a_row_that_gives_patches_nothing_counts_as_zero():
    layout = vit_layout(grid=(2, 2))
    attn = torch.zeros(1, 1, 1, 5, 5, dtype=torch.float64)
    attn[..., 0] = 1
    got = run(AttentionDistance(layout), batch_of(attn))
    assert got["value"].item() == 0 and got["raw"].item() == 0


def test_what_a_window_allows_is_less_than_the_whole_grid():
    swin, vit = swin_layout(), vit_layout(grid=(8, 8), pixels=(4.0, 4.0))
    windowed, whole = (
        run(AttentionDistance(layout), batch_of(*even(layout))) for layout in (swin, vit)
    )
    assert whole["whole"].item() == pytest.approx(
        whole["uniform"].item()
    )  # without windows they are the same
    assert windowed["whole"].tolist() == pytest.approx(2 * whole["uniform"].tolist())
    assert (windowed["uniform"] < 0.6 * windowed["whole"]).all()
