"""The figures of attention statistics: every head is shown, reference levels are drawn, nothing is clipped."""

from __future__ import annotations

import pytest
import torch

from attention import batch_of, even, looking, random_maps, run, stream_of, swin_layout, vit_layout
from drawn import assert_axes_do_not_overlap, assert_nothing_is_clipped, images
from layouts import LAYOUTS
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.measures.attention_range import AttentionRange
from mhprobe.measures.js_distance import JSDistance
from mhprobe.measures.no_op import NoOp
from mhprobe.measures.position import Position
from mhprobe.measures.token_kinds import TokenKinds
from mhprobe.report import twins
from mhprobe.report.figures import attention, heads
from mhprobe.report.figures.pairs import embedding

SMALL = {
    "vit": vit_layout(heads=12, layers=6),
    "one layer": vit_layout(heads=4, layers=1, prefix=0),
    "swin": HeadLayout(
        tuple(
            HeadSite(
                f"s{i}",
                stage,
                i,
                heads,
                2,
                windows=site.windows,
                grid=(8, 8),
                pixels=(4.0 * 2**stage,) * 2,
            )
            for i, (stage, heads, site) in enumerate(
                (stage, heads, site)
                for stage, heads in enumerate((3, 6, 12))
                for site in swin_layout().sites
            )
        ),
        vit_layout(layers=6).blocks,
    ),
}


def columns(measure, layout):
    maps = random_maps(layout, images=2)
    extra = {"attn_grad": tuple(maps), "stream": stream_of(layout, 2, loud={7: 9.0})}
    return run(measure, batch_of(*maps, **extra))


def test_offsets_of_whole_images_are_shown_beside_those_of_windows():
    """Windows in the first block, all tokens in the second, as many heads in both: one matrix holds their maps."""
    layout = HeadLayout(tuple(HeadSite(f"b{block}", 0, block, 2, 4) for block in range(2)))
    exists = torch.zeros(4, 7, 7, dtype=torch.float64)
    exists[:2, 2:5, 2:5] = exists[2:] = 8
    counts = torch.zeros_like(exists)
    counts[2, 6, 0] = 8  # far down to the left, for every query
    shown = {"counts": counts, "exists": exists, "positional": torch.tensor([0, 0, 1, 0])}
    (mosaic,) = images(attention.offset_maps(layout, shown, "share"))
    assert mosaic.get_array().shape == (2 * 8, 2 * 8) and mosaic.get_array().max() == 1


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("level", ["uniform", "chance", None])
def test_by_depth_has_a_dot_per_head_and_the_level_to_read_it_against(name, level):
    layout = LAYOUTS[name]
    value = torch.rand(layout.num_heads, dtype=torch.float64)
    shown = {"value": value, **({level: torch.full_like(value, 0.25)} if level else {})}
    figure = heads.by_depth(layout, shown, "mean attention distance (input pixels)")
    lines = figure.axes[0].get_lines()
    dots = [y for line in lines if line.get_linestyle() == "None" for y in line.get_ydata()]
    assert dots == value.tolist()
    levels = [line for line in lines if line.get_linestyle() == "--"]
    assert len(levels) == (level is not None)
    assert all(y == 0.25 for line in levels for y in line.get_ydata())
    assert_nothing_is_clipped(figure)
    figure = heads.by_depth(
        layout, {**shown, "random_init": torch.full_like(value, 0.5)}, "mean attention distance"
    )
    [control] = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert all(y == 0.5 for y in control.get_ydata())
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("name", SMALL)
def test_range_profile_has_a_curve_per_head_that_ends_at_all_the_mass(name):
    layout = SMALL[name]
    figure = attention.range_profile(layout, columns(AttentionRange(layout), layout), "r50")
    assert len(figure.axes) == len(layout.sites)
    curves = [
        line for axes in figure.axes for line in axes.get_lines() if line.get_linestyle() == "-"
    ]
    assert len(curves) == layout.num_heads
    assert all(line.get_ydata()[-1] == pytest.approx(1) for line in curves)
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


@pytest.mark.parametrize("name", SMALL)
def test_offset_maps_frame_positional_heads_and_no_others(name):
    layout = SMALL[name]
    attn = random_maps(layout, images=2)
    own = looking(layout, 0, 0)  # no other offset is there from 90 % of all queries
    attn[0][:, :, 1] = own[0][:, :, 1]
    shown = run(Position(layout), batch_of(*attn))
    figure = attention.offset_maps(layout, shown, "share")
    frames = [patch for axes in figure.axes for patch in axes.patches if not patch.get_fill()]
    assert len(frames) == 1 == shown["positional"].sum()
    (first, *_) = images(figure)
    steps = layout.sites[0].token_grid[0] if layout.sites[0].windows is None else 4
    side = 2 * steps  # 2 steps - 1 offsets and a gap
    first_map = first.get_array()[: side - 1, side : 2 * side - 1]
    assert first_map[steps - 1, steps - 1] == pytest.approx(1)  # the middle
    assert any(
        "queries with a key there" in axes.get_ylabel() for axes in figure.axes
    )  # what the share is of
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


@pytest.mark.parametrize("name", SMALL)
def test_kind_ratios_show_all_kinds_of_all_heads_and_white_is_even(name):
    layout = SMALL[name]
    found = columns(TokenKinds(layout), layout)
    kinds = [name for name in found if name.startswith("uniform_")]
    kinds = [
        name for name in kinds if not found[name.removeprefix("uniform_")].isnan().all()
    ]  # of keys that are there
    figure = attention.kind_ratios(layout, found, "share")
    (image,) = images(figure)
    assert image.get_array().shape == (len(kinds), layout.num_heads) and len(kinds) > 7
    assert image.norm.vmin == -image.norm.vmax
    assert_nothing_is_clipped(figure)
    batch = batch_of(*even(layout), stream=stream_of(layout, 2))
    (image,) = images(attention.kind_ratios(layout, run(TokenKinds(layout), batch), "share"))
    assert abs(image.get_array()).max() < 1e-12


def test_a_few_cells_far_out_leave_the_others_their_colours():
    """Once a single head with a thirtieth of even attention made all of 72 columns white."""
    layout = SMALL["one layer"]
    kinds = ["self", *"abcdefghijklmnopqrstuvw"]
    one = torch.ones(layout.num_heads, dtype=torch.float64)
    found = {
        name: values
        for kind in kinds
        for name, values in ((kind, 1.5 * one), (f"uniform_{kind}", one))
    }
    far = one.clone()
    far[0] = 2**-5
    figure = attention.kind_ratios(layout, {**found, "self": far}, "share")
    (image,) = images(figure)
    assert image.norm.vmax == 1 and image.get_array().min() == -5
    assert any("and more" in axes.get_title() for axes in figure.axes)
    assert not any(
        "and more" in axes.get_title()
        for axes in attention.kind_ratios(layout, found, "share").axes
    )


@pytest.mark.parametrize("ends", [1, 2, 3, 5])
def test_both_colour_bars_of_kind_ratios_have_their_ends_and_grey_is_explained(ends):
    layout = SMALL["one layer"]
    one = torch.ones(layout.num_heads, dtype=torch.float64)
    most = 2.0**ends - 0.5
    some = most * one  # of one head: the keys that a window at the edge has not
    some[0] = torch.nan
    gone = {"registers": torch.nan * one, "uniform_registers": one}  # of no head: no row
    found = {"self": most * one, "uniform_self": one, "above": some, "uniform_above": one, **gone}
    figure = twins.draw_measure(
        "kind_ratios", layout, found, "share", None, {**found, "self": 1.01 * one}
    )
    figure.draw_without_rendering()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["self", "above"]
    bars = [axes for axes in figure.axes if hasattr(axes, "_colorbar")]
    assert len(bars) == 2
    for axes in bars:
        low, high = axes.get_ylim()
        marks = [
            text.get_text()
            for text in axes.get_yticklabels()
            if low - 1e-6 < text.get_position()[1] < high + 1e-6
        ]
        assert (marks[0], marks[-1]) == (f"1/{2**ends}", f"{2**ends}")
        assert "grey: no such key" in axes.get_ylabel()
    whole = attention.kind_ratios(layout, {"self": one, "uniform_self": one}, "share")
    assert not any("grey" in axes.get_ylabel() for axes in whole.axes)


@pytest.mark.parametrize("name", SMALL)
def test_special_keys_have_a_dot_per_head_and_both_reference_lines(name):
    layout = SMALL[name]
    shown = columns(NoOp(layout), layout)
    figure = attention.special_keys(layout, shown, "|dL/dA|, special over other keys")
    (dots,) = figure.axes[0].collections
    assert len(dots.get_offsets()) == layout.num_heads
    assert len(figure.axes[0].get_lines()) == 2
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("pairs", ["layer", "stage"])
def test_embedding_has_a_point_per_head_in_a_panel_per_group(name, pairs):
    layout = SMALL[name]
    shown = columns(JSDistance(layout, pairs=pairs, permutations=1), layout)
    figure = embedding(layout, shown, "JS divergence / ln 2")
    groups = len(layout.sites) if pairs == "layer" else layout.num_stages
    points = [line for axes in figure.axes[:groups] for line in axes.get_lines()]
    assert len(points) == layout.num_heads
    assert_nothing_is_clipped(figure)
