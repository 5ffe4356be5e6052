"""Figures for a printed page: files of a known width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image

from curves import masked_head
from drawn import assert_nothing_is_clipped, needs_matplotlib
from layouts import LAYOUTS
from mhprobe.masking.redundant_or_inert import Likeness
from mhprobe.report.figures import attention, masking, pruned, runs
from mhprobe.report.figures.heads import per_head
from mhprobe.report.figures.style import LEAST, ONE, TWO, canvas, fit_columns, save_figure
from mhprobe.report.report import Report, Result, Sample
from results import add_measure


def ranked(layout):
    value = torch.rand(layout.num_heads)
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


@pytest.mark.usefixtures("whole_pictures")
def test_files_are_one_column_or_two_wide_with_300_dots_per_inch(tmp_path):
    layout = LAYOUTS["one head"]
    report = Report(tmp_path, layout, style="paper")
    report.network, report.data, report.images = "vit_tiny", "digits", Sample(360, "test")
    add_measure(report, "narrow", "per_head", {"value": torch.ones(1)})
    layout = LAYOUTS["vit_base"]
    report.add({"wide": Result(figure=per_head(layout, ranked(layout), "importance"))})
    for name, inches in (("narrow", ONE), ("wide", TWO)):
        with Image.open(tmp_path / "figures" / f"{name}.png") as image:
            assert image.width == pytest.approx(300 * inches, abs=1)
            assert image.info["dpi"][0] == pytest.approx(300, abs=0.1)
        page = (tmp_path / "figures" / f"{name}.pdf").read_bytes().decode("latin1")
        assert f"/MediaBox [ 0 0 {72 * inches:g}" in page


def test_a_figure_that_fits_is_not_touched_and_a_wide_one_keeps_its_text_readable():
    layout = LAYOUTS["vit_base"]
    narrow = per_head(layout, {"value": torch.rand(144)}, "importance")
    size = tuple(narrow.get_size_inches())
    assert (
        fit_columns(narrow).width == pytest.approx(TWO) and tuple(narrow.get_size_inches()) == size
    )
    wide = per_head(layout, ranked(layout), "importance")
    assert wide.get_figwidth() > 8
    fit_columns(wide)
    sizes = [text.get_fontsize() for text in wide.findobj(Text) if text.get_text()]
    assert min(sizes) == LEAST and wide.get_figwidth() < TWO + 0.3


@pytest.mark.usefixtures("whole_pictures")
@pytest.mark.parametrize("paper", [False, True])
def test_text_is_measured_as_wide_as_it_is_printed(tmp_path, paper):
    """With fewer dots it is some percent narrower, and long names were cut."""
    with canvas((1, 1)) as figure:
        figure.text(0, 0.5, "num_heads=3, " * 9, fontsize=7)
    figure.set_dpi(100)
    png, _ = save_figure(figure, tmp_path / "runs", about="small print", paper=paper)
    with Image.open(png) as image:
        ink = np.asarray(image.convert("L")) < 250
    assert ink.any() and not (ink[0].any() or ink[-1].any() or ink[:, 0].any() or ink[:, -1].any())


def test_screen_is_what_it_was(tmp_path):
    report = Report(tmp_path, LAYOUTS["one head"])
    add_measure(report, "narrow", "per_head", {"value": torch.ones(1)})
    with Image.open(tmp_path / "figures" / "narrow.png") as image:
        assert image.info["dpi"][0] == pytest.approx(150, abs=0.1)


def test_the_smallest_text_of_a_figure_decides_for_one_column():
    columns = {name: torch.rand(72) for name in ("attention", "value", "uniform_attention")}
    figure = attention.special_keys(LAYOUTS["vit"], columns, "ratio of slopes")
    needs_matplotlib("3.11", "fits this figure into one column")
    assert 3.6 < figure.get_tightbbox().width < 4.6
    assert fit_columns(figure).width == pytest.approx(
        TWO
    )  # in one column its text would be below six points


def test_runs_with_long_names_are_not_clipped():
    name = "an experiment with a long name, number {}, and more of it"
    of_runs = [
        {"run": f"r{i}", "group": name.format(i % 2), **interval(0.8 + i / 99)} for i in range(4)
    ]
    assert_nothing_is_clipped(runs.runs(of_runs, None))


def test_runs_of_a_sweep_over_sizes_can_be_told_apart_in_their_figure():
    name = "backbone.depth={}, backbone.num_heads=3, backbone.patch_size={}"
    of_runs = [
        {"run": f"r{i}", "group": name.format(i // 2, i % 2), **interval(0.8)} for i in range(4)
    ]
    figure = runs.runs(of_runs, None)
    assert_nothing_is_clipped(figure)
    said = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert said == [f"depth={i // 2}, num_heads=3, patch_size={i % 2}" for i in range(4)]
    alike = [
        {"run": part, "group": f"{part}.lr=0.1", **interval(0.8)} for part in ("optim", "gates")
    ]
    assert [text.get_text() for text in runs.runs(alike, None).axes[0].get_yticklabels()] == [
        "optim.lr=0.1",
        "gates.lr=0.1",
    ]


def test_a_table_of_speeds_is_not_clipped():
    rates = {
        "dense_images_per_s": 900.0,
        "masked_images_per_s": 880.0,
        "pruned_images_per_s": 1250.0,
    }
    gain = {"heads": 12, "speedup": 1.4, "speedup_low": 1.3, "speedup_high": 1.5, "predicted": 1.6}
    measured = [
        {
            "removed": name,
            "batch": batch,
            "device": "a processor with a name as long as that of some",
            **rates,
            **gain,
        }
        for name in ("heads", "heads and weights")
        for batch in (1, 8, 64)
    ]
    assert_nothing_is_clipped(pruned.speed(measured))


def interval(share):
    return {"accuracy": share, "low": share - 0.02, "high": share + 0.02}


def test_a_figure_without_small_print_fills_its_column_too(tmp_path):
    save_figure(
        per_head(LAYOUTS["one head"], {"value": torch.ones(1)}, "importance"),
        tmp_path / "narrow",
        paper=True,
    )
    with Image.open(tmp_path / "narrow.png") as image:
        assert image.width == pytest.approx(300 * ONE, abs=1)


@pytest.mark.usefixtures("whole_pictures")
@pytest.mark.parametrize("paper", [True, False])
def test_small_print_stands_clear_of_a_legend_that_hangs_below(tmp_path, paper):
    heads = [masked_head(curve, "at", Likeness(0, 0.3, 0.05), 0.1) for curve in "abcde"]
    figure = masking.maskable(heads, "svcca", 0.5)
    save_figure(
        figure, tmp_path / "wide", "vit_tiny_patch16_224, digits, n = 360 test images", paper=paper
    )
    with Image.open(tmp_path / "wide.png") as image:
        inked = [min(line) < 250 for line in np.asarray(image.convert("L"))]
    bands = sum(
        inked[row] and not inked[row - 1] for row in range(round(0.9 * len(inked)), len(inked))
    )
    assert bands == 2  # of ink, with an empty line between
