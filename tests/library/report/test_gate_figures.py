"""Figures about learned gates show every head, and clip no text."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped, images
from layouts import LAYOUTS
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.lab.papers.causal_gates import ROLES, roles_by_gates
from mhprobe.measures.parts.functions import LABELS
from mhprobe.report.figures import gates, pruned
from mhprobe.report.figures.style import COLOURS, save_figure
from mhprobe.stats.survival import survivors


@pytest.mark.parametrize("neurons", [0, 8])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_what_pruning_keeps_shows_every_head_and_the_share_of_neurons_of_each_block(
    layout, neurons
):
    """Neurons were left out: of a network that had lost most of them the picture showed heads alone."""
    mlps = [
        HeadSite(f"{s.name}.mlp", s.stage, s.block, 8, 1, kind="neuron")
        for s in layout.sites
        if neurons
    ]
    whole, heads = HeadLayout((*layout.sites, *mlps)), layout.num_heads
    left = torch.arange(whole.num_heads) % 3 > 0
    for number in range(len(mlps)):  # as many as the number of the block, at most all
        left[whole.span(len(layout.sites) + number)] = torch.arange(8) < number
    figure = pruned.kept(whole, left)
    assert (
        torch.cat([torch.tensor(image.get_array().data).flatten() for image in images(figure)])
        .bool()
        .equal(left[:heads])
    )
    bars = [patch.get_width() for axes in figure.axes for patch in axes.patches]
    assert len(bars) == 2 * len(mlps)
    for number, (room, share) in enumerate(zip(bars[::2], bars[1::2], strict=True)):
        assert share == pytest.approx(room * min(number, 8) / 8)
    assert any(text.get_text() == "neurons left" for text in figure.axes[0].texts) == bool(neurons)
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_histories_and_classes_fit_every_layout(layout):
    torch.manual_seed(0)
    heads = layout.num_heads
    figure = gates.gate_history(layout, [0, 10, 20], torch.rand(3, heads), 0.5)
    meshes = [
        mesh
        for axes in figure.axes
        for mesh in axes.collections
        if hasattr(mesh, "get_coordinates")
    ]
    assert meshes[0].get_array().shape == (heads, 3)
    assert_nothing_is_clipped(figure)
    plus, minus = torch.rand(heads), torch.rand(heads)
    columns = {
        "role": roles_by_gates(plus, minus),
        "plus": plus,
        "minus": minus,
        "threshold": torch.tensor(0.5),
    }
    figure = gates.causal(layout, columns, "role", {"role": ROLES})
    assert sum(len(points.get_offsets()) for points in figure.axes[-1].collections) == heads
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_survivors_are_a_line_per_group_up_to_the_whole_model(layout):
    groups = {
        "stage": [(f"stage {site.stage}",) for _, _, site in layout],
        "block": [(f"block {site.block}",) for _, _, site in layout],
        "label": [(LABELS[i % 8], "unknown")[: 1 + i % 2] for i in range(layout.num_heads)],
    }
    rows = [
        row
        for run in (3, 2)
        for row in survivors(str(run), [i % run == 0 for i in range(layout.num_heads)], groups)
    ]
    figure = pruned.survival(rows)
    random, *lines = figure.axes[-1].get_lines()
    assert random.get_xydata().tolist() == [[0, 0], [layout.num_heads, 100]]
    for label, line in zip(
        [label for label in LABELS if any(label in names for names in groups["label"])],
        lines[::2],
        strict=True,
    ):
        found = [(r.heads, 100 * r.kept / r.of) for r in rows if r.group == label] + [
            (layout.num_heads, 100)
        ]
        alike = {heads: [share for h, share in found if h == heads] for heads, _ in found}
        shares = {heads: sum(all_of) / len(all_of) for heads, all_of in alike.items()}
        assert line.get_xdata() == pytest.approx(sorted(shares), abs=0.02 * layout.num_heads)
        assert line.get_ydata().tolist() == pytest.approx(
            [shares[heads] for heads in sorted(shares)]
        )
    assert_nothing_is_clipped(figure)


def test_survivors_of_many_blocks_have_looks_of_their_own():
    """Shades of one scale could not be told apart."""
    groups = {"block": [(f"block {head // 2}",) for head in range(24)]}
    figure = pruned.survival(survivors("0", [head < 18 for head in range(24)], groups))
    _, *lines = figure.axes[0].get_lines()
    looks = {
        (line.get_color(), line.get_linestyle(), dots.get_marker())
        for line, dots in zip(lines[::2], lines[1::2], strict=True)
    }
    assert len(looks) == 12 and len({look[0] for look in looks}) == len(COLOURS)
    assert len({look[:2] for look in looks}) == 12, "two lines look alike between their markers"
    assert_nothing_is_clipped(figure)


def test_survivors_of_a_single_block_leave_a_page_without_panels(tmp_path):
    """Nothing there can be compared; the sweep goes on."""
    figure = pruned.survival(
        survivors("0", [1, 0, 1], {"stage": [("stage 0",)] * 3, "block": [("block 0",)] * 3})
    )
    assert not figure.axes and save_figure(figure, tmp_path / "survivors", about="cifar10")


def test_runs_that_keep_equally_many_heads_are_points_around_their_mean():
    groups = {"block": [("a",), ("a",), ("b",), ("b",)]}
    rows = [
        row
        for run, kept in (("0", [1, 1, 0, 0]), ("1", [1, 0, 1, 0]))
        for row in survivors(run, kept, groups)
    ]
    _, line, dots, *_ = pruned.survival(rows).axes[0].get_lines()
    assert line.get_ydata().tolist() == [75, 100]
    assert sorted(dots.get_ydata().tolist()) == [50, 100, 100]


def test_sweeps_and_voitas_table_are_drawn_whole():
    assert_nothing_is_clipped(
        pruned.retained([(0, 0.1, 0.1), (3, 0.8, 0.7), (24, 1.0, 1.0)], 100, 24, 0.95, 0.1)
    )
    assert_nothing_is_clipped(pruned.retained([(12, 0.8, 0.7)], 100, 24, None, 0.1))
    for least in (0.2, 0.9):
        assert_nothing_is_clipped(
            pruned.voita([(144, 0.95, 0.95), (72, 0.9, least), (1, 0.9, 0.9)], 10_000, 0.1)
        )


def test_the_whole_model_is_drawn_once_and_the_star_explained():
    points = [(144, 0.95, 0.95), (72, 0.9, 0.8), (1, 0.9, 0.9)]
    for sure in ([False, True, False], [False] * 3):
        axes = pruned.voita(points, 10_000, 0.1, sure).axes[0]
        drawn = {bars.get_label(): len(bars.lines[0].get_xdata()) for bars in axes.containers}
        assert drawn == {"whole model": 1, "pruned from trained": 2, "same heads from scratch": 2}
        assert any("McNemar" in text.get_text() for text in axes.get_legend().get_texts()) == any(
            sure
        )


def test_the_band_of_a_sweep_is_in_its_legend():
    (axes,) = pruned.retained([(3, 0.8, 0.7), (24, 1.0, 1.0)], 100, 24, None, 0.1).axes
    assert "95 % over images" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_axis_of_a_sweep_ends_where_its_bands_and_the_whole_model_do():
    (axes,) = pruned.retained(
        [(3, 0.7, 0.7), (24, 0.8, 0.8)], 10_000, 24, before=0.83, chance=0.1
    ).axes
    assert 65 < axes.get_ylim()[0] < 70 and 83 < axes.get_ylim()[1] < 87


def test_one_step_is_a_history_too():
    assert_nothing_is_clipped(gates.gate_history(LAYOUTS["digits"], [0], torch.rand(1, 24), 0.5))
