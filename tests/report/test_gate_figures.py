"""Figures about learned gates show every head, and clip no text."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped
from mhprobe.report.figures import causal, gate_history, retained, survival, voita
from mhprobe.stats.survival import LABELS, survivors
from mhprobe.studies.causal_gates import ROLES, roles
from report.test_figures import LAYOUTS


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_histories_and_classes_fit_every_layout(layout):
    torch.manual_seed(0)
    heads = layout.num_heads
    figure = gate_history.draw(layout, [0, 10, 20], torch.rand(3, heads), 0.5)
    meshes = [mesh for axes in figure.axes for mesh in axes.collections if hasattr(mesh, "get_coordinates")]
    assert sum(mesh.get_array().size for mesh in meshes[: len(layout.sites)]) == 3 * heads
    assert_nothing_is_clipped(figure)
    plus, minus = torch.rand(heads), torch.rand(heads)
    columns = {"role": roles(plus, minus), "plus": plus, "minus": minus, "threshold": torch.tensor(0.5)}
    figure = causal.draw(layout, columns, "role", {"role": ROLES})
    assert sum(len(points.get_offsets()) for points in figure.axes[-1].collections) == heads
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_survivors_stack_up_to_the_heads_kept(layout):
    groups = {
        "stage": [f"stage {site.stage}" for _, _, site in layout],
        "block": [f"block {site.block}" for _, _, site in layout],
        "label": [LABELS[i % 8] for i in range(layout.num_heads)],
    }
    rows = [
        row for run in (2, 3) for row in survivors(str(run), [i % run == 0 for i in range(layout.num_heads)], groups)
    ]
    figure = survival.draw(rows)
    for axes in figure.axes:
        tops = [max(bar.get_y() + bar.get_height() for bar in bars) for bars in axes.containers]
        assert max(tops) == layout.num_heads  # the last bar is the whole model
    assert_nothing_is_clipped(figure)


def test_sweeps_and_voitas_table_are_drawn_whole():
    assert_nothing_is_clipped(retained.draw([(0, 0.1, 0.1), (3, 0.8, 0.7), (24, 1.0, 1.0)], 100, 24, 0.95, 0.1))
    assert_nothing_is_clipped(retained.draw([(12, 0.8, 0.7)], 100, 24))
    for least in (0.2, 0.9):
        assert_nothing_is_clipped(voita.draw([(144, 0.95, 0.95), (72, 0.9, least), (1, 0.9, 0.9)], 10_000, 0.1))


def test_the_whole_model_is_drawn_once_and_the_star_explained():
    points = [(144, 0.95, 0.95), (72, 0.9, 0.8), (1, 0.9, 0.9)]
    for sure in ([False, True, False], [False] * 3):
        axes = voita.draw(points, 10_000, 0.1, sure).axes[0]
        drawn = {bars.get_label(): len(bars.lines[0].get_xdata()) for bars in axes.containers}
        assert drawn == {"whole model": 1, "pruned from trained": 2, "same heads from scratch": 2}
        assert any("McNemar" in text.get_text() for text in axes.get_legend().get_texts()) == any(sure)


def test_the_band_of_a_sweep_is_in_its_legend():
    (axes,) = retained.draw([(3, 0.8, 0.7), (24, 1.0, 1.0)], 100, 24).axes
    assert "95 % over images" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_one_step_is_a_history_too():
    assert_nothing_is_clipped(gate_history.draw(LAYOUTS["digits"], [0], torch.rand(1, 24), 0.5))
