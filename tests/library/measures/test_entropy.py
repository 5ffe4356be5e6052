from __future__ import annotations

import math

import pytest
import torch

from attention import batch_of, even, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.heads import HeadLayout, HeadSite, Windows
from mhprobe.measures.entropy import Entropy


def test_even_attention_has_the_entropy_of_the_number_of_keys():
    layout = vit_layout()
    got = run(Entropy(layout), batch_of(*even(layout)))
    for column in ("value", "class_query", "uniform"):
        assert got[column].item() == pytest.approx(math.log(17), rel=1e-12)
    assert got["share"].item() == pytest.approx(1)
    swin = run(Entropy(swin_layout()), batch_of(*even(swin_layout())))
    # windows of 16, two regions of 8 twice, four of 4: 16 tokens of each
    shifted = (math.log(16) + 2 * math.log(8) + math.log(4)) / 4
    assert swin["value"].tolist() == pytest.approx([math.log(16), shifted], rel=1e-12)
    assert swin["share"].tolist() == pytest.approx([1, 1], rel=1e-12)
    assert swin["class_query"].isnan().all()


def test_one_key_has_no_entropy():
    for layout in (vit_layout(), swin_layout()):
        patch_rows = run(Entropy(layout), batch_of(*looking(layout, 1, 0)))
        assert patch_rows["value"].abs().max() == 0
        assert patch_rows["share"].abs().max() == 0


def test_what_padding_takes_is_divided_out():
    grid = (3, 3)  # in windows of 2: 7 of 16 places are padding
    layout = HeadLayout(
        (HeadSite("a", 0, 0, 1, 2, windows=Windows(grid, (2, 2), (0, 0)), grid=grid),)
    )
    attn = torch.full((1, 4, 1, 4, 4), 0.25, dtype=torch.float64)
    got = run(Entropy(layout), batch_of(attn))
    # windows with 4, 2, 2 and 1 real tokens; the last has no choice and no share
    assert got["value"].item() == pytest.approx((4 * math.log(4) + 4 * math.log(2)) / 9)
    assert got["share"].item() == pytest.approx(1)


def test_share_averages_the_ratio_and_not_the_entropies():
    layout = swin_layout()
    attn = random_maps(layout)
    got = run(Entropy(layout), batch_of(*attn))
    rows = torch.special.entr(attn[1]).sum(-1)[:, :, 0]
    keys = layout.sites[1].support().sum(-1)
    assert got["share"][1].item() == pytest.approx(
        (rows / keys.log()).mean().item(), rel=1e-6
    )  # log of an int: float32
    assert abs(got["share"][1] - got["value"][1] / got["uniform"][1]) > 1e-4
