"""What several results say together: numbers in the tables, and figures that clip no text."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_axes_do_not_overlap, assert_nothing_is_clipped
from layouts import LAYOUTS as USUAL
from layouts import layout_of
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import heads as heads_figures
from mhprobe.report.figures import pairs, training
from mhprobe.report.figures import runs as figures
from mhprobe.report.figures.classes import by_class
from mhprobe.report.measured import Point, agreement_of, two_data_sets
from mhprobe.report.measured import history as history_of
from mhprobe.report.report import Report
from mhprobe.stats.agreement import agreement, pearson
from runs import rows

LAYOUTS = {"vit": USUAL["vit"], "swin": USUAL["swin"], "large": layout_of(*[16] * 24)}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def values(layout: HeadLayout, count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    names = [
        "gate_importance",
        "ablation_delta",
        "attention_distance",
        *(f"measure_{n}" for n in range(20)),
    ]
    return dict(zip(names[:count], noise(count, layout.num_heads, seed=seed), strict=True))


@pytest.mark.parametrize("count", [2, 5, 18])
@pytest.mark.parametrize("with_control", [False, True])
def test_agreement_shows_every_pair_once_and_clips_nothing(count, with_control):
    found = agreement(values(LAYOUTS["vit"], count), k=10)
    figure = figures.agreement(
        found, agreement(values(LAYOUTS["vit"], count, seed=1), k=10) if with_control else None
    )
    shown = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()]
    assert [image.count() for image in shown] == [count * (count + 1) / 2] * (
        4 if with_control else 2
    )
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


def test_a_measure_that_is_the_same_everywhere_agrees_with_nothing(tmp_path):
    layout = LAYOUTS["vit"]
    both = {**values(layout, 2), "flat": torch.ones(layout.num_heads)}
    Report(tmp_path).add({"agreement": agreement_of(both, {}, k=10)})
    table = rows(tmp_path / "tables" / "agreement.csv")
    assert [row["spearman"] == "nan" for row in table] == [
        "flat" in (row["measure_a"], row["measure_b"]) for row in table
    ]
    assert "spearman_random_init" not in table[0]


def test_one_measure_alone_has_nothing_to_agree_with(tmp_path):
    Report(tmp_path).add({"agreement": agreement_of(values(LAYOUTS["vit"], 1), {}, k=10)})
    assert not (tmp_path / "tables").exists()


def test_a_control_that_lacks_a_measure_is_left_out(tmp_path):
    found, control = values(LAYOUTS["vit"], 3), values(LAYOUTS["vit"], 2, seed=1)
    Report(tmp_path).add({"agreement": agreement_of(found, control, k=10)})
    assert "spearman_random_init" not in rows(tmp_path / "tables" / "agreement.csv")[0]


@layouts
@pytest.mark.parametrize("count", [1, 3, 9])
def test_scatter_shows_every_head_and_clips_nothing(layout, count):
    x, y = values(layout, count), values(layout, count, seed=1)
    x["gate_importance"][:2] = torch.nan
    panels = [(name, x[name] * 1e-3, y[name] * 1e-3, pearson(x[name], y[name])) for name in x]
    figure = figures.scatter(layout, panels, "cifar10", "cifar10_corrupted")
    points = [
        len(axes.collections[0].get_offsets()) for axes in figure.axes if axes.get_title(loc="left")
    ]
    assert points == [layout.num_heads - 2] + [layout.num_heads] * (count - 1)
    assert_nothing_is_clipped(figure)
    assert_axes_do_not_overlap(figure)


def test_two_data_sets_are_compared_measure_by_measure(tmp_path):
    a, b = values(LAYOUTS["vit"], 3), values(LAYOUTS["vit"], 2, seed=1)
    Report(tmp_path).add(
        {"bad_against_cifar10": two_data_sets(LAYOUTS["vit"], "cifar10", "bad", a, b)}
    )
    table = rows(tmp_path / "tables" / "bad_against_cifar10.csv")
    assert [row["measure"] for row in table] == list(b)
    for row in table:
        assert float(row["pearson"]) == pearson(a[row["measure"]], b[row["measure"]]).r
        assert float(row["low"]) < float(row["pearson"]) < float(row["high"])


@layouts
@pytest.mark.parametrize("points", [1, 12])
def test_history_has_a_line_for_every_head_and_clips_nothing(layout, points):
    label = "gate importance: mean |dL/dξ| (nats)"
    figure = training.history(
        layout, list(range(0, 100 * points, 100)), noise(points, layout.num_heads), label
    )
    thin = [line for line in figure.axes[0].lines if line.get_linewidth() == 0.5]
    assert len(thin) == layout.num_heads
    assert_nothing_is_clipped(figure)


def test_a_history_is_one_row_per_point_and_head(tmp_path):
    layout = LAYOUTS["swin"]
    points = [
        Point(epoch, 10 * epoch, noise(layout.num_heads, seed=epoch).tolist()) for epoch in range(3)
    ]
    report = Report(tmp_path, layout)
    report.add({"fisher_history": history_of(report.layout, "Fisher", points, drawn=False)})
    assert not (tmp_path / "figures").exists()
    report.add({"fisher_history": history_of(report.layout, "Fisher", points, drawn=True)})
    assert (tmp_path / "figures" / "fisher_history.png").is_file()
    table = rows(tmp_path / "tables" / "fisher_history.csv")
    assert len(table) == 3 * layout.num_heads
    assert [float(row["value"]) for row in table[: layout.num_heads]] == points[0].values
    assert {row["step"] for row in table} == {"0", "10", "20"}


@layouts
@pytest.mark.parametrize("classes", [10, 100])
def test_by_class_shows_all_heads_and_classes(layout, classes):
    names = {"by_class": [f"a class with number {number}" for number in range(classes)]}
    columns = {"value": noise(layout.num_heads), "by_class": noise(layout.num_heads, classes)}
    figure = by_class(layout, columns, "unused", names)
    assert figure.axes[0].get_images()[0].get_array().shape == (layout.num_heads, classes)
    assert_nothing_is_clipped(figure)
    assert_nothing_is_clipped(by_class(layout, columns, "unused"))


@layouts
@pytest.mark.parametrize("selected", [False, True])
def test_one_head_layers_are_drawn_with_and_without_a_choice(layout, selected):
    accuracy = noise(layout.num_heads).sigmoid()
    first = torch.zeros(layout.num_heads, dtype=torch.long)
    first[list(layout.offsets[:-1])] = 1
    columns = {
        "value": -accuracy,
        "accuracy": accuracy,
        "accuracy_low": accuracy - 0.05,
        "accuracy_high": accuracy + 0.05,
        "chosen": first * selected,
        "test_best": first,
        "whole": torch.tensor(0.8),
    }
    figure = heads_figures.sufficiency(layout, columns, "value")
    assert_nothing_is_clipped(figure)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any("validation" in label for label in labels) == selected


@pytest.mark.parametrize("count", [2, 8, 40])
def test_few_compared_heads_get_a_matrix_of_their_own(count):
    layout = LAYOUTS["large"]
    heads = torch.arange(count) * 7
    value = torch.full((layout.num_heads,) * 2, torch.nan, dtype=torch.float64)
    some = noise(count, count)
    value[heads[:, None], heads] = some + some.T
    columns = {"value": value, "low": value - 1, "high": value + 1}
    before = value.clone()
    figure = pairs.pairwise(layout, columns, "interaction: extra loss of masking both (nats)")
    assert figure.axes[0].get_images()[0].get_array().shape == (count, count)
    torch.testing.assert_close(value, before, equal_nan=True)  # drawing changes nothing
    marked = figure.axes[0].lines[0].get_xdata()
    off_diagonal = ~torch.eye(count, dtype=torch.bool)
    assert len(marked) == int(((some + some.T).abs() > 1)[off_diagonal].sum())
    assert_nothing_is_clipped(figure)
    assert_nothing_is_clipped(pairs.few_heads(layout, {"value": value}, "short"))


def test_a_dot_is_corrected_for_all_pairs_that_were_looked_at():
    """Of 28 pairs whose own intervals all exclude 0, one survives Holm's correction: it alone has a dot."""
    layout, heads = LAYOUTS["large"], torch.arange(8)
    value = torch.full((layout.num_heads,) * 2, torch.nan, dtype=torch.float64)
    value[heads[:, None], heads] = 1.0
    p_holm = torch.where(value.isnan(), value, 0.5)
    p_holm[1, 3] = p_holm[3, 1] = 0.01
    columns = {"value": value, "low": value - 0.9, "high": value + 0.9}
    dots = [
        len(pairs.few_heads(layout, given, "short").axes[0].lines[0].get_xdata())
        for given in (columns, {**columns, "p_holm": p_holm})
    ]
    assert dots == [8 * 7, 2]
