"""Figures show every head once, hide nothing, and clip no text."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import mhprobe
from curves import curve, masked_head
from drawn import assert_axes_do_not_overlap, assert_nothing_is_clipped, images
from layouts import LAYOUTS
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.masking.base import Scored
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.redundant_or_inert import Likeness
from mhprobe.report.figures import masking, pairs, style, training
from mhprobe.report.figures.heads import per_head
from mhprobe.report.runs.facts import origin
from mhprobe.stats.promise import Guarantee


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


PANELS = {
    "vit": 1,
    "vit_base": 1,
    "digits": 1,
    "swin": 3,
    "swin_base": 4,
    "one layer": 1,
    "one head": 1,
}


def pairs_within_layers(layout: HeadLayout) -> dict[str, torch.Tensor]:
    value = torch.full((layout.num_heads,) * 2, torch.nan, dtype=torch.float64)
    for i, site in enumerate(layout.sites):
        block = torch.rand(site.num_heads, site.num_heads, dtype=torch.float64)
        value[layout.span(i), layout.span(i)] = (block + block.T) / 4 + 0.3
    value.diagonal().fill_(1)
    return {"value": value, "null": torch.where(value.isnan(), value, 0.17)}


@pytest.mark.parametrize("interval", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_per_head_shows_every_head_once_and_clips_nothing(name, interval):
    layout = LAYOUTS[name]
    value = torch.rand(layout.num_heads, dtype=torch.float64) * 0.03
    columns = {
        "value": value,
        **({"low": value - 0.001, "high": value + 0.001} if interval else {}),
    }
    figure = per_head(layout, columns, "gate importance (nats)")
    shown = images(figure)
    assert len(shown) == PANELS[name]
    torch.testing.assert_close(
        torch.cat([torch.tensor(i.get_array().data).flatten() for i in shown]), value
    )
    assert len({(image.norm.vmin, image.norm.vmax) for image in shown}) == 1
    assert len(figure.axes) == PANELS[name] + 1 + interval
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


def test_cells_of_uneven_stages_are_equally_large():
    figure = per_head(LAYOUTS["swin"], {"value": torch.rand(66)}, "value")
    width, height = figure.get_size_inches()
    cells = set()
    for image in images(figure):
        box, (rows, columns) = image.axes.get_position(), image.get_array().shape
        cells.add((round(box.width * width / columns, 6), round(box.height * height / rows, 6)))
        assert box.x0 == images(figure)[0].axes.get_position().x0
    assert len(cells) == 1


def test_both_signs_get_colours_that_part_at_zero():
    value = torch.tensor([-1.0, 0.0, 2.0, torch.nan])
    (image,) = images(per_head(LAYOUTS["one layer"], {"value": value}, "signed"))
    assert (image.norm.vmin, image.norm.vmax) == (-2, 2)
    (image,) = images(per_head(LAYOUTS["one layer"], {"value": value.abs()}, "unsigned"))
    assert (image.norm.vmin, image.norm.vmax) == (0, 2)


@pytest.mark.parametrize("name", LAYOUTS)
def test_pairwise_has_one_matrix_per_layer_without_its_diagonal(name):
    layout = LAYOUTS[name]
    columns = pairs_within_layers(layout)
    before = columns["value"].clone()
    figure = pairs.pairwise(layout, columns, "mean canonical correlation")
    shown = images(figure)
    assert [image.get_array().shape[0] for image in shown] == [
        site.num_heads for site in layout.sites
    ]
    assert all(image.get_array().mask.diagonal().all() for image in shown)  # masked: drawn grey
    assert all(image.get_array().mask.sum() == len(image.get_array()) for image in shown)
    if name != "one head":
        assert shown[0].norm.vmax < 1  # the diagonal does not set the scale
    assert any("chance 0.17" in text.get_text() for text in figure.axes[-1].texts) == (
        name != "one head"
    )
    torch.testing.assert_close(columns["value"], before, equal_nan=True)
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


def test_pairs_across_layers_are_one_matrix():
    value = torch.rand(24, 24)
    figure = pairs.pairwise(LAYOUTS["digits"], {"value": value}, "similarity")
    assert [image.get_array().shape for image in images(figure)] == [(24, 24)]
    assert_nothing_is_clipped(figure)


def some_curves(
    num_heads: int, names: list[str], points: int = 5, p: list[float] | None = None
) -> list[Curve]:
    """Lines that fall from 95 %, each a point below the one before; random ones are means of three repeats."""
    found = []
    heads = [step * num_heads // points for step in range(points)]
    for n, name in enumerate(names):
        fall = [0.95 - 0.8 * k / max(points - 1, 1) - 0.01 * n * (k > 0) for k in range(points)]
        if name.startswith("random"):
            found.append(curve(name, heads, fall, chosen_on=None, search="", seeds=(0, 1, 2)))
            continue
        found.append(curve(name, heads, [value - 0.02 for value in fall], split="validation"))
        found.append(curve(name, heads, fall, p))
    return found


@pytest.mark.parametrize("heads", [24, 72, 144])
def test_distances_draw_the_mean_loss_of_the_reported_split_with_its_band(heads):
    lost = "KL divergence from the unmasked model (nats)"
    scored = Scored("kl", "agreement", "top-1 agreement", lost)
    shown = [
        dataclasses.replace(each, scored=scored)
        for each in some_curves(heads, ["head_max", "random"])
    ]
    figure = masking.distances(shown, heads)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["head_max", "random"]
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx(shown[1].points.loss.tolist())
    assert len(axes.collections) == 2
    assert_nothing_is_clipped(figure)
    label = axes.yaxis.label
    assert label.get_text().replace("\n", " ") == f"test: {lost}, smaller is closer"
    assert label.get_window_extent().height <= axes.get_window_extent().height, (
        "the label is longer than its axis"
    )
    (left, right), last = axes.get_xlim(), shown[0].points.heads[-1]
    assert left < 0 and last < right < 1.03 * last, (
        "the axis ends where the curves do: no tick beyond the heads"
    )


def test_curves_draw_the_reported_split_and_the_mean_of_random_ones():
    names = ["head_max", "head_min", "layer_max", "layer_min", "layer_max2", "random"]
    figure = masking.curves(some_curves(144, names), 144, chance=0.1)
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    thin = {f"_{name}, validation" for name in names if name != "random"}
    notes = [
        "thin: validation, chosen on it",
        "steps chosen by\nexact search",
        "unmasked",
        "chance",
    ]
    assert set(lines) == {*names, *thin, *notes}
    assert max(lines[name].get_linewidth() for name in thin) < lines["head_max"].get_linewidth()
    assert list(lines["_head_max, validation"].get_ydata()) == pytest.approx([93, 73, 53, 33, 13])
    for n, name in enumerate(names):
        assert list(lines[name].get_ydata()) == pytest.approx(
            [95] + [95 - 20 * k - n for k in range(1, 5)]
        )
    assert (
        lines["unmasked"].get_ydata()[0] == pytest.approx(95)
        and lines["unmasked"].get_linestyle() == "--"
    )
    assert lines["chance"].get_ydata()[0] == pytest.approx(10)
    assert lines["random"].get_color() == "0.45"
    assert len({lines[name].get_color() for name in names}) == 6
    assert len(axes.collections) == 6  # a band each
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == [*names, *notes]
    assert_nothing_is_clipped(figure)


def rings(found: list[Curve]) -> list[Any]:
    return [
        line
        for line in masking.curves(found, 24).axes[0].get_lines()
        if line.get_label() == "_ring"
    ]


def test_a_ring_marks_the_first_significant_step_and_there_is_none_without_a_test():
    p = [1.0, 0.2, 0.016, 0.01, 0.001]  # Holm: 0.032 at the third
    (ring,) = rings(some_curves(24, ["a"], p=p))
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (2 * 24 // 5, pytest.approx(55))
    assert not rings(
        [curve("a", range(5), [0.95 + k / 100 for k in range(5)], p)]
    )  # significant, but not lower
    assert not rings(some_curves(24, ["a"]))


def test_curves_on_the_images_that_chose_them_say_so():
    found = [
        curve("a", range(3), [0.9, 0.8, 0.5], chosen_on="test"),
        curve("b", range(3), [0.9, 0.8, 0.4]),
    ]
    legend = [
        text.get_text() for text in masking.curves(found, 24).axes[0].get_legend().get_texts()
    ]
    assert "chosen on test:\ntoo high, not tested" in legend
    legend = [
        text.get_text() for text in masking.curves(found[1:], 24).axes[0].get_legend().get_texts()
    ]
    assert not any("too high" in text for text in legend)


def test_over_steps_the_legend_says_how_many_heads_a_step_takes():
    found = [
        curve("index", [0, 6, 12], [0.9, 0.8, 0.5]),
        curve("mixed", [0, 3, 15], [0.9, 0.7, 0.4]),
    ]
    found.append(curve("one", [0, 1, 2], [0.9, 0.6, 0.3]))
    for over, expected in (
        ("steps", ["index (6 heads a step)", "mixed", "one (1 head a step)"]),
        ("heads", ["index", "mixed", "one"]),
    ):
        figure = masking.curves(found, 24, over=over)
        assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()][:3] == expected
        assert_nothing_is_clipped(figure)


def test_curves_that_were_searched_differently_say_how():
    found = [
        curve("a", range(3), [0.9, 0.8, 0.5]),
        curve("b", range(3), [0.9, 0.8, 0.4], search="screened, racing"),
    ]
    figure = masking.curves(found, 24)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend[:2] == ["a (exact)", "b (screened, racing)"]
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("paper", [False, True])
def test_matrices_of_twelve_blocks_leave_their_labels_room(paper):
    """On a printed page the title of a block once stood on the numbers of the heads above it."""
    sites = [HeadSite(f"blocks.{block}.attn", 0, block, 6, 8) for block in range(12)]
    layout = HeadLayout(tuple(sites))
    value = torch.full((72, 72), torch.nan, dtype=torch.float64)
    for site in range(12):
        span = layout.span(site)
        value[span, span] = 0.3 + 0.01 * site
    figure = pairs.pairwise(
        layout, {"value": value, "null": 0.1 * torch.ones_like(value)}, "similarity"
    )
    if paper:
        style.printed(figure, 300, paper=True)
    assert_axes_do_not_overlap(figure)


def test_many_curves_can_be_told_apart():
    names = [f"curve {n}" for n in range(16)]
    figure = masking.curves(some_curves(144, names), 144, chance=0.1)
    drawn = [line for line in figure.axes[0].get_lines() if line.get_label() in names]
    assert len({(line.get_color(), str(line._unscaled_dash_pattern)) for line in drawn}) == 16
    assert not [line for line in figure.axes[0].get_lines() if "validation" in line.get_label()], (
        "as many lines again"
    )
    assert_nothing_is_clipped(figure)


def test_a_short_search_fills_the_axes_and_single_points_show_where_they_lie():
    (axes,) = masking.curves([curve("a", [0, 28, 57], [0.7] * 3, width=0.05)], 144, chance=0.1).axes
    assert axes.get_xlim()[1] < 1.1 * 57
    assert 50 < axes.get_ylim()[0] < 65 and 75 < axes.get_ylim()[1] < 90
    assert "chance" not in axes.get_legend_handles_labels()[1]
    (axes,) = masking.curves(some_curves(144, ["head_max"], points=1), 144, chance=0.1).axes
    assert axes.get_xlim()[1] > 144 and axes.get_ylim()[0] < 0


def test_maskable_draws_every_head_of_every_curve_in_its_phase():
    heads = [
        masked_head(name, phase, Likeness(0, 0.2 + 0.1 * n, 0.05), 0.1 + n)
        for name in ("a", "b", "c", "d")
        for n, phase in enumerate(["before", "before", "at", "after", "after"])
    ]
    figure = masking.maskable([*heads, masked_head("a", "before", None, 0.1)], "svcca", 0.5)
    assert len(figure.axes) == 4
    dots = [line for line in figure.axes[0].get_lines() if line.get_marker() not in ("", "None")]
    assert sum(len(line.get_xdata()) for line in dots) == 5
    (filled,) = [line for line in dots if line.get_label() == "shown to go for little"]
    assert (
        len(filled.get_xdata()) == 1 and filled.get_markerfacecolor() != "none"
    )  # the other one is not redundant
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_legend_of_maskable_stands_clear_of_its_axes(count):
    heads = [masked_head(name, "before", Likeness(0, 0.3, 0.05), 0.4) for name in "abc"[:count]]
    figure = masking.maskable(heads, "svcca", 0.5)
    figure.draw_without_rendering()
    top = figure.legends[0].get_window_extent().y1
    assert all(axes.xaxis.get_label().get_window_extent().y0 >= top for axes in figure.axes)
    assert_nothing_is_clipped(figure)
    assert figure.axes[0].get_ylim()[1] < 0.6  # no empty half above the highest head


def test_maskable_without_a_compared_head_is_an_empty_figure():
    assert not masking.maskable([masked_head("a", "at", None, 0.1)], "svcca", 0.5).axes


@pytest.mark.parametrize("epochs", [1, 2, 40])
def test_settling_draws_every_epoch(epochs):
    rows = [
        {"epoch": e, "share": s / 10, "accuracy": max(0.1, 0.9 - 0.08 * s), "chance": 0.1}
        for e in range(epochs)
        for s in range(10)
    ]
    agreement = [
        {"epoch_a": a, "epoch_b": b, "spearman": 0.5}
        for a in range(epochs)
        for b in range(a + 1, epochs)
    ]
    figure = training.settling(rows, agreement, 100)
    assert len([line for line in figure.axes[0].get_lines() if line.get_marker() == "."]) == 10
    assert [image.get_array().shape for image in images(figure)[:2]] == [
        (9, epochs),
        (epochs, epochs),
    ]
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


def test_settling_is_grey_where_the_whole_model_cannot_be_told_from_guessing():
    """11.1 % of 144 images (Wilson: 7.0 to 17.3 %) may be chance; of 10,000 (10.5 to 11.7 %) they are not."""
    rows = [
        {"epoch": e, "share": s, "accuracy": whole - 0.01 * s, "chance": 0.1}
        for e, whole in enumerate((0.111, 0.5))
        for s in (0.0, 0.5)
    ]
    for few, grey in ((144, [True, False]), (10_000, [False, False])):
        figure = training.settling(rows, [], few)
        assert (
            torch.tensor(images(figure)[0].get_array().filled(torch.nan)).isnan().all(0).tolist()
            == grey
        )
        said = [
            axes.get_ylabel()
            for axes in figure.axes
            if "grey: whole model at chance" in axes.get_ylabel()
        ]
        assert bool(said) == any(grey)
        assert_nothing_is_clipped(figure)


def test_a_curve_keeps_its_colour_when_another_overtakes_it():
    a, b = (curve(name, range(3), [0.9, 0.8, end]) for name, end in (("a", 0.5), ("b", 0.4)))
    lower = curve("a", range(3), [0.9, 0.8, 0.1])
    colours = [
        {
            line.get_label(): line.get_color()
            for line in masking.curves(found, 24).axes[0].get_lines()
        }
        for found in ([a, b], [lower, b])
    ]
    assert colours[0] == colours[1] and colours[0]["a"] != colours[0]["b"]


def test_single_points_are_drawn_with_their_interval():
    figure = masking.curves(some_curves(24, ["head_max", "random"], points=1), 24)
    assert len(figure.axes[0].containers) == 2
    assert_nothing_is_clipped(figure)


@pytest.mark.usefixtures("whole_pictures")
def test_saved_figures_are_whole_and_reproducible(tmp_path):
    def draw():
        return per_head(LAYOUTS["digits"], {"value": torch.arange(24.0)}, "value")

    png, pdf = style.save_figure(draw(), tmp_path / "figures" / "v1.5_importance")
    assert (png.name, pdf.name) == ("v1.5_importance.png", "v1.5_importance.pdf")
    assert png.read_bytes().startswith(b"\x89PNG") and pdf.read_bytes().startswith(b"%PDF")
    again = style.save_figure(draw(), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), pdf.read_bytes()]


@pytest.mark.usefixtures("whole_pictures")
def test_text_in_a_pdf_is_in_fonts_that_publishers_take(tmp_path, monkeypatch):
    """They refuse outlines of letters (Type 3)."""

    def fonts() -> bytes:
        figure = per_head(LAYOUTS["digits"], {"value": torch.arange(24.0)}, "value")
        return style.save_figure(figure, tmp_path / "a")[1].read_bytes()

    assert b"/Type3" not in fonts() and b"/CIDFontType2" in fonts()
    monkeypatch.setitem(style.STYLE, "pdf.fonttype", 3)
    assert b"/Type3" in fonts()


def test_a_figures_file_says_what_made_it(tmp_path):
    from PIL import Image

    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "overrides.yaml").write_text(
        "- +paper=voita\n- weights=/home/somebody/vit.safetensors\n"
    )
    made = origin("study", tmp_path)
    assert made["command"] == "python -m mhprobe.study +paper=voita weights=vit.safetensors"
    figure = per_head(LAYOUTS["digits"], {"value": torch.arange(24.0)}, "value")
    png, pdf = style.save_figure(figure, tmp_path / "a", origin=made)
    text = Image.open(png).text
    assert text["Source"] == made["command"] and text["Comment"] == f"commit {made['commit']}"
    assert text["Software"] == f"mhprobe {mhprobe.__version__}"
    for part in ("+paper=voita", made["commit"], mhprobe.__version__):
        assert part.encode() in pdf.read_bytes()


def test_the_ranked_heads_have_names_at_both_ends():
    layout = LAYOUTS["digits"]  # four blocks of six heads
    value = torch.arange(24.0)
    value[7] = torch.nan
    figure = per_head(layout, {"value": value, "low": value - 1, "high": value + 1}, "value")
    (said,) = [axes.get_xlabel() for axes in figure.axes if "ranked" in axes.get_xlabel()]
    assert said.endswith("highest 3.5, 3.4, 3.3; lowest 0.0, 0.1, 0.2")
    assert_nothing_is_clipped(figure)


def test_ten_times_the_others_is_far_above_them_and_twice_is_not():
    value = torch.linspace(0.1, 0.4, 24)
    for top, norm in ((3.7, "LogNorm"), (0.8, "Normalize")):
        (image,) = images(
            per_head(LAYOUTS["digits"], {"value": value.index_fill(0, torch.tensor(3), top)}, "v")
        )
        assert type(image.norm).__name__ == norm


def test_one_value_far_above_all_others_gets_a_logarithmic_scale():
    value = torch.rand(24, dtype=torch.float64) * 0.01 + 0.001
    value[3] = 5.0
    figure = per_head(LAYOUTS["digits"], {"value": value}, "fisher")
    (image,) = images(figure)
    assert image.norm.__class__.__name__ == "LogNorm" and image.norm.vmax == 5
    assert_nothing_is_clipped(figure)


@pytest.mark.usefixtures("whole_pictures")
def test_small_print_says_what_a_figure_is_of_below_everything_else(tmp_path):
    def draw():
        return per_head(LAYOUTS["digits"], {"value": torch.arange(24.0)}, "value")

    plain, signed = (
        style.save_figure(draw(), tmp_path / name, about)
        for name, about in (("a", ""), ("b", "vit, n = 360"))
    )
    assert (
        b"n = 360" not in plain[1].read_bytes() and plain[0].read_bytes() != signed[0].read_bytes()
    )
    figure = draw()
    style.save_figure(figure, tmp_path / "c", "vit, n = 360")
    (text,) = figure.texts
    assert text.get_text() == "vit, n = 360" and text.get_position()[1] <= 0


@pytest.mark.parametrize("promised", [2, 0])
def test_a_line_says_where_the_promise_ends(promised):
    whole = curve(
        "head_fisher",
        [0, 1, 2, 3, 4],
        [0.9, 0.9, 0.893, 0.7, 0.5],
        split="calibration",
        chosen_on="train",
    )
    trace = dataclasses.replace(whole.traces[0], promised=promised)
    figure = masking.curves(
        [dataclasses.replace(whole, traces=(trace,), guarantee=Guarantee(1.0))],
        12,
        units="heads and neurons",
    )
    across = [
        line
        for line in figure.axes[0].get_lines()
        if line.get_linestyle() == "-." and len(line.get_xdata())
    ]
    assert [float(line.get_xdata()[0]) for line in across] == ([2.0] if promised else [])
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any(
        text.startswith("to here: at most 1 point lost" if promised else "nowhere: ")
        for text in texts
    )
    assert figure.axes[0].get_xlabel() == "heads and neurons masked (of 12)"
    assert_nothing_is_clipped(figure)


def test_a_typical_width_lies_between_the_two_middle_ones():
    low = torch.zeros(2, 2)
    high = torch.tensor([[0.0, 2.0], [6.0, 0.0]])
    assert (
        style.typical_width({"low": low, "high": high}) == " (95\u00a0%:\u00a0±2)"
    )  # of half-widths 1 and 3
    _, norm = style.scale(torch.tensor([1.0, 1.0, 3.0, 15.0]), log=True)  # 7.5 medians
    assert type(norm).__name__ == "Normalize"
