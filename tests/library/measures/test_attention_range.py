from __future__ import annotations

import pytest
import torch

import mhprobe
from attention import batch_of, even, looking, random_maps, run, swin_layout, vit_layout
from mhprobe.measures.attention_range import AttentionRange, radius
from models import images_for, tiny_registers, tiny_swin
from oracles import attention_range as oracle


def test_all_mass_on_one_key_has_no_range_wherever_the_key_is():
    for layout in (vit_layout(), swin_layout()):
        got = run(AttentionRange(layout), batch_of(*looking(layout, 1, 1)))
        assert got["r50"].abs().max() == 0 and got["r90"].abs().max() == 0
        assert (got["uniform"] > 0).all()


def test_a_peak_and_one_other_key_put_the_mass_at_their_distance():
    layout = vit_layout(grid=(1, 4), pixels=(16.0, 16.0))
    attn = torch.zeros(1, 1, 1, 5, 5, dtype=torch.float64)
    attn[..., 1] = 0.6
    attn[..., 4] = 0.4  # 48 pixels from the peak
    got = run(AttentionRange(layout), batch_of(attn))
    assert got["distances"][0].tolist() == [0, 16, 32, 48]
    torch.testing.assert_close(got["mass"][0], torch.tensor([0.6, 0, 0, 0.4], dtype=torch.float64))
    assert got["peak"].item() == pytest.approx(0.6)
    # the mass off the peak grows from 0 to 1 between 32 and 48 pixels
    assert got["r50"].item() == pytest.approx(32 + 0.5 * 16)
    assert got["r90"].item() == pytest.approx(32 + 0.9 * 16)


def test_a_peak_that_holds_most_of_the_mass_does_not_hide_how_far_the_rest_goes():
    layout = vit_layout(heads=2, grid=(1, 4), pixels=(16.0, 16.0))
    attn = torch.zeros(1, 1, 2, 5, 5, dtype=torch.float64)
    attn[..., 1] = 0.9
    attn[:, :, 0, :, 2] = attn[:, :, 1, :, 4] = 0.1  # next to it, or as far as can be
    got = run(AttentionRange(layout), batch_of(attn))
    assert 0 < got["value"][0] <= 16 < 32 < got["value"][1]


def test_even_attention_has_the_range_of_the_uniform_line_and_mass_is_a_share():
    for layout in (vit_layout(), swin_layout()):
        got = run(AttentionRange(layout), batch_of(*even(layout)))
        torch.testing.assert_close(got["mass"], got["uniform_mass"])
        torch.testing.assert_close(got["r90"], got["uniform_r90"])
        torch.testing.assert_close(
            got["mass"].sum(1), torch.ones(len(got["mass"]), dtype=torch.float64)
        )


def test_the_uniform_line_is_taken_around_the_same_argmax_keys():
    layout = vit_layout(grid=(1, 3), pixels=(1.0, 1.0))
    attn = torch.full((1, 1, 1, 4, 4), 0.1, dtype=torch.float64)
    attn[..., 2] = 0.7  # everyone looks at the middle: nothing is farther than 1
    got = run(AttentionRange(layout), batch_of(attn))
    torch.testing.assert_close(
        got["uniform_mass"][0], torch.tensor([1, 2, 0], dtype=torch.float64) / 3
    )


def test_keys_that_share_the_largest_weight_count_the_same():
    layout = vit_layout(grid=(1, 3), pixels=(1.0, 1.0))
    row = torch.tensor(
        [0.0, 0.4, 0.4, 0.2], dtype=torch.float64
    )  # the rest is at 1 and 2 from one, at 1 from the other
    got = run(AttentionRange(layout), batch_of(row.expand(1, 1, 1, 4, 4)))
    torch.testing.assert_close(got["mass"][0], torch.tensor([0.4, 0.5, 0.1], dtype=torch.float64))
    torch.testing.assert_close(
        got["uniform_mass"][0], torch.tensor([2, 3, 1], dtype=torch.float64) / 6
    )


@pytest.mark.parametrize("std", [0.4, 0.0])  # without weights all keys are equal
@pytest.mark.parametrize("build", [tiny_registers, tiny_swin])
def test_radii_agree_with_a_dictionary_of_distances(build, std):
    model = build().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    images = images_for(model, 2, dtype=torch.float64)
    layout = mhprobe.attach(model).layout
    sites = [(s.name, s.num_heads) for s in layout.sites]
    got = run(AttentionRange(layout), mhprobe.record(model, images, needs={"attn"}))
    for column, share in (("r50", 0.5), ("r90", 0.9)):
        torch.testing.assert_close(
            got[column], oracle.radii(model, images, sites, share), rtol=1e-9, atol=1e-9
        )


def test_sharper_attention_has_a_larger_peak_and_no_other_range():
    layout = vit_layout(heads=4)
    blunt, sharp = (
        run(AttentionRange(layout), batch_of(*random_maps(layout, sharpness=s))) for s in (0.5, 4.0)
    )
    assert (sharp["peak"] > blunt["peak"] + 0.2).all() and (
        blunt["peak"] > blunt["uniform_peak"]
    ).all()
    # random maps have no places: what lies off the peak is as far as even attention, give or take
    torch.testing.assert_close(sharp["r90"], sharp["uniform_r90"], rtol=0.1, atol=0)


def test_radius_of_a_profile_that_reaches_the_share_exactly():
    distances = torch.tensor([[0.0, 1, 2, torch.nan]], dtype=torch.float64)
    mass = torch.tensor([[0.5, 0.25, 0.25, 0]], dtype=torch.float64)
    assert [radius(distances, mass, s).item() for s in (0.25, 0.5, 0.625, 0.75, 1.0)] == [
        0,
        0,
        0.5,
        1,
        2,
    ]


def test_where_a_window_wraps_around_no_radius_is_read_between_its_near_and_far_keys():
    # 5 columns in windows of 3, shifted by 1 and padded: columns 4 and 0 share a window, nothing is
    # at distance 3
    layout = swin_layout(grid=(1, 5), size=(1, 3), shift=(0, 1), pixels=(1.0, 1.0))
    got = run(AttentionRange(layout), batch_of(*even(layout)))
    assert got["distances"][1].tolist() == [0, 1, 2, 3, 4]
    mass = (
        torch.tensor([6, 4, 2, 0, 3], dtype=torch.float64) / 15
    )  # around all keys of a window, which are equal
    torch.testing.assert_close(got["mass"][1], mass)
    # off the argmax key: a third lies at 4; 90 % are reached at 0.7 of the way from 3 to 4
    assert got["r90"][1].item() == pytest.approx(3.7)
