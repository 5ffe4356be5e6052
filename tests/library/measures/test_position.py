from __future__ import annotations

import pytest
import torch

import mhprobe
from attention import batch_of, even, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.errors import UserError
from mhprobe.measures.position import Position
from models import images_for, tiny_registers, tiny_swin
from oracles import position as oracle


@pytest.mark.parametrize(("dy", "dx"), [(0, 0), (0, -1), (1, 0), (-2, 1)])
def test_a_head_made_to_look_at_one_offset_is_found_with_its_offset(dy, dx):
    layout = vit_layout(grid=(6, 6))
    got = run(Position(layout), batch_of(*looking(layout, dy, dx)))
    assert (got["dy"].item(), got["dx"].item()) == (dy, dx)
    reachable = (6 - abs(dy)) * (6 - abs(dx)) / 36
    assert got["reach"].item() == pytest.approx(reachable)
    assert got["reaching"].item() == 1
    # among all queries the share can not reach 90 % on so small a grid, except for looking at
    # oneself
    assert got["value"].item() == pytest.approx(reachable)
    assert got["positional"].item() == ((dy, dx) == (0, 0))
    assert got["chance"].item() == pytest.approx(reachable / 36)


def test_a_head_that_follows_its_offset_in_a_quarter_of_all_queries_is_not_positional():
    layout = vit_layout(grid=(6, 6))
    attn = torch.zeros(1, 1, 1, 37, 37, dtype=torch.float64)
    attn[..., 1] = 0.4  # the upper left corner, from everywhere
    for query in range(36):
        if query >= 18 and query % 6 < 3:
            attn[..., 1 + query, 1 + query - 18 + 3] = (
                0.6  # three up and three to the right, where that is
            )
    got = run(Position(layout), batch_of(attn))
    assert (got["dy"].item(), got["dx"].item(), got["reaching"].item()) == (-3, 3, 1)
    assert got["value"].item() == got["reach"].item() == 9 / 36 and got["positional"].item() == 0


def test_in_shifted_windows_the_same_head_is_positional_too():
    layout = swin_layout()
    got = run(Position(layout), batch_of(*looking(layout, 0, -1)))
    assert got["dy"].tolist() == [0, 0] and got["dx"].tolist() == [-1, -1]
    assert got["reaching"].tolist() == [1, 1] and got["positional"].tolist() == [0, 0]
    # rows of 4 tokens have 3 left neighbours; the shifted window splits half of them in two
    assert got["reach"].tolist() == pytest.approx([3 / 4, 5 / 8])


def test_looking_across_the_edge_of_the_image_is_no_offset():
    layout = swin_layout()
    counts = run(Position(layout), batch_of(*random_maps(layout, 20)))["counts"]
    assert counts.shape == (2, 7, 7)  # windows of 4: nothing is farther than 3
    exists = run(Position(layout), batch_of(*even(layout)))["exists"]
    assert exists[:, 3, 3].tolist() == [64, 64] and exists[1, 0, 0] == 1 and exists[0, 0, 0] == 4
    assert (counts[exists == 0] == 0).all()
    assert counts.sum((1, 2)).tolist() == [64, 64]


def test_a_head_that_looks_at_one_place_is_not_positional():
    layout = vit_layout(grid=(6, 6))
    attn = torch.full((2, 1, 1, 37, 37), 0.01, dtype=torch.float64)
    attn[..., 1] = 0.64  # the upper left corner, from everywhere
    got = run(Position(layout), batch_of(attn))
    assert got["positional"].item() == 0
    assert got["value"].item() < 0.12


def test_threshold_decides_who_is_positional():
    layout = vit_layout(grid=(4, 4))
    attn = torch.cat([looking(layout, 0, 0, images=8)[0], looking(layout, 0, 1, images=2)[0]])
    # 8 of 10 images look at themselves, and so do the 4 of 16 queries of the rest that have no
    # right neighbour
    share = (8 * 16 + 2 * 4) / 160
    for threshold, expected in ((0.8, 1), (0.9, 0)):
        got = run(Position(layout, threshold=threshold), batch_of(attn))
        assert got["value"].item() == pytest.approx(share)
        assert got["positional"].item() == expected


@pytest.mark.parametrize("build", [tiny_registers, tiny_swin])
def test_favourites_agree_with_counting_them_out(build):
    model = build().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    images = images_for(model, 3, dtype=torch.float64)
    layout = mhprobe.attach(model).layout
    expected = oracle.favourites(model, images, [(s.name, s.num_heads) for s in layout.sites])
    got = run(Position(layout), mhprobe.record(model, images, needs={"attn"}))
    assert list(zip(got["dy"].tolist(), got["dx"].tolist(), strict=True)) == [
        (dy, dx) for _, dy, dx in expected
    ]
    assert got["value"].tolist() == pytest.approx([share for share, *_ in expected])


@pytest.mark.parametrize("option", ["threshold", "reach"])
@pytest.mark.parametrize("value", [0, 1.5])
def test_shares_outside_their_range_are_refused(option, value):
    with pytest.raises(
        UserError, match=f"position: {option} is a share above 0 and at most 1, got {value}"
    ):
        Position(vit_layout(), **{option: value})


@pytest.mark.parametrize("misses", [(4, 4, 4, 3, 3), (18, 0, 0, 0, 0)])
def test_nine_tenths_of_all_queries_are_enough_though_no_image_has_just_that(misses):
    layout = vit_layout(grid=(6, 6))
    attn = looking(layout, 0, 0, images=5)[0].clone()
    for image, count in enumerate(misses):
        attn[image, ..., 1 : 1 + count, :] = torch.eye(37, dtype=attn.dtype)[
            36
        ]  # these look at the last patch
    got = run(Position(layout), batch_of(attn))
    assert (got["value"].item(), got["positional"].item()) == (0.9, 1)


def test_keys_that_tie_for_the_largest_weight_share_the_query():
    layout = vit_layout(grid=(6, 6))
    left, right = (looking(layout, 0, dx)[0] for dx in (-1, 1))
    got = run(Position(layout), batch_of((left + right) / 2))
    # a row of six: five queries have a left neighbour and give it half, the other half goes to the
    # right, or to itself
    assert got["value"].item() == pytest.approx(5 / 2 / 6) and got["dx"].item() == -1
    assert got["counts"].sum().item() == pytest.approx(36)


def test_a_head_that_looks_evenly_at_all_keys_is_at_chance():
    layout = vit_layout(grid=(6, 6))
    got = run(Position(layout), batch_of(*even(layout)))
    assert got["value"].item() == pytest.approx(got["chance"].item()) == pytest.approx(1 / 36)


def test_a_head_with_all_its_attention_on_the_class_token_does_not_look_at_itself():
    layout = vit_layout(grid=(6, 6))
    attn = torch.zeros(1, 1, 1, 37, 37, dtype=torch.float64)
    attn[..., 0] = 1  # in half precision small weights are exactly 0
    got = run(Position(layout), batch_of(attn))
    assert got["positional"].item() == 0 and got["value"].item() == pytest.approx(
        got["chance"].item()
    )
