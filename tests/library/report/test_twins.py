"""A figure with a freshly initialised network below it: on the same scale, or noise looks like structure."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped
from layouts import LAYOUTS
from mhprobe.report import twins
from mhprobe.report.figures import attention


def spectra(layout, size):
    return {
        "value": torch.zeros(layout.num_heads),
        "spectrum": -size * torch.rand(layout.num_heads, 5),
        "stream": -size * torch.rand(len(layout.sites), 3, 5),
        "frequencies": torch.linspace(0, 1, 5)[None],
    }


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_axes_of_the_control_are_those_of_the_measure(name):
    layout = LAYOUTS[name]
    figure = twins.draw_measure(
        "spectrum", layout, spectra(layout, 5.0), "slope", control=spectra(layout, 0.01)
    )
    own, control = figure.subfigs[1].axes, figure.subfigs[3].axes
    assert len(own) == len(control) == 1 + len(layout.sites)
    assert all(a.get_ylim() == b.get_ylim() for a, b in zip(own, control, strict=True))
    assert own[0].get_ylim()[0] < -4
    assert [part.texts[0].get_text() for part in (figure.subfigs[0], figure.subfigs[2])] == [
        "as measured",
        "the same, freshly initialised",
    ]
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("wider", [0, 1])
def test_ticks_of_both_are_those_of_the_wider_one(wider):
    layout, columns = LAYOUTS["vit"], []
    for reach in (40, 8):
        rho = torch.full((72, 72, 40), torch.nan)
        rho[..., :reach] = torch.linspace(0.9, 0.1, reach)
        columns.append({"rho": rho, "null_rho": rho / 2})
    figure = twins.draw_measure(
        "coefficients", layout, columns[wider], "", control=columns[1 - wider]
    )
    own, control = (part.axes[0].get_xticks().tolist() for part in figure.subfigs[1::2])
    assert own == control and max(own) > 20


def test_colours_of_the_control_are_those_of_the_measure():
    layout = LAYOUTS["vit"]
    drop = torch.rand(72, 5) - 0.2
    figure = twins.draw_measure(
        "by_class", layout, {"by_class": drop}, "", control={"by_class": drop.abs() / 100}
    )
    own, control = (part.axes[0].images[0] for part in (figure.subfigs[1], figure.subfigs[3]))
    limit = pytest.approx(drop.abs().max().item())
    assert own.norm.vmax == control.norm.vmax == limit and control.norm.vmin == -control.norm.vmax
    assert own.cmap == control.cmap  # both say which way from 0
    assert figure.subfigs[3].axes[1].get_ylim() == (
        pytest.approx(-own.norm.vmax),
        limit,
    )  # and the colour bar
    assert_nothing_is_clipped(figure)


def test_numbers_in_cells_can_be_read_in_the_colours_of_both():
    layout = LAYOUTS["vit"]
    columns = {
        "accuracy": torch.tensor([0.9]),
        "drop": torch.linspace(-0.3, 0.3, 72),
        "p_holm": torch.ones(72),
    }
    small = {**columns, "drop": columns["drop"] / 50}
    figure = twins.draw_measure("accuracy_without", layout, columns, "", control=small)
    own, control = (
        [text.get_color() for text in part.axes[0].texts] for part in figure.subfigs[1::2]
    )
    assert set(own) == {"white", "black"}  # the darkest red and blue
    assert set(control) == {
        "black"
    }  # on this scale all of its cells are pale; alone some of them are dark


def test_marks_of_a_colour_bar_keep_their_words():
    layout = LAYOUTS["vit"]
    columns = {"value": torch.rand(72), "cls": torch.rand(72), "uniform_cls": torch.rand(72)}
    figure = twins.draw_measure(
        "kind_ratios", layout, columns, "", control={**columns, "cls": columns["cls"] / 9}
    )
    figure.canvas.draw()
    alone = attention.kind_ratios(layout, columns, "")
    alone.canvas.draw()
    words = [text.get_text() for text in alone.axes[1].get_yticklabels()]
    assert "1/2" in words
    assert [text.get_text() for text in figure.subfigs[1].axes[1].get_yticklabels()] == words


def test_without_a_control_the_figure_stands_alone():
    layout = LAYOUTS["vit"]
    assert not twins.draw_measure("spectrum", layout, spectra(layout, 1.0), "slope").subfigs


def test_a_kind_that_draws_the_control_itself_is_drawn_once():
    layout = LAYOUTS["vit"]
    columns = {"value": torch.rand(72), "random_init": torch.rand(72)}
    figure = twins.draw_measure(
        "by_depth", layout, columns, "distance", control={"value": columns["random_init"]}
    )
    assert not figure.subfigs
    assert "random initialisation" in [
        text.get_text() for text in figure.axes[0].get_legend().get_texts()
    ]


def patched(layout, size):
    exact = size * torch.rand(layout.num_heads)
    return {"value": exact, "atp": 0.9 * exact, "size": exact, "atp_size": 0.8 * exact}


def test_an_axis_of_names_stays_as_it_is_and_the_other_is_shared():
    from matplotlib.figure import Figure

    own, control = Figure().subplots(1, 2)
    own.plot([0, 1], [0, 3])
    control.plot([0, 4], [0, 7])
    for axes in (own, control):
        axes.invert_yaxis()
    before = own.get_ylim(), control.get_ylim()
    twins._one_frame(own, control)
    assert (own.get_ylim(), control.get_ylim()) == before
    assert own.get_xlim() == control.get_xlim() and own.get_xlim()[1] > 4


@pytest.mark.parametrize(("times", "boxes"), [(30.0, 2), (3.0, 0)])
def test_a_control_that_lies_far_out_leaves_the_measure_its_room(times, boxes):
    layout = LAYOUTS["vit"]
    figure = twins.draw_measure(
        "patching", layout, patched(layout, 0.1), "", control=patched(layout, 0.1 * times)
    )
    own, control = figure.subfigs[1].axes, figure.subfigs[3].axes
    drawn = [patch for axes in control for patch in axes.patches]
    assert len(drawn) == boxes and not [patch for axes in own for patch in axes.patches]
    assert own[0].get_xlim()[1] == pytest.approx(0.1 * (1 if boxes else times), rel=0.1)
    for axes, other in zip(own, control, strict=True):
        assert (
            other.get_xlim()[0] <= axes.get_xlim()[0] and axes.get_xlim()[1] <= other.get_xlim()[1]
        )
    for patch, axes in zip(drawn, own, strict=False):
        assert (patch.get_x(), patch.get_x() + patch.get_width()) == pytest.approx(axes.get_xlim())
    assert_nothing_is_clipped(figure)
