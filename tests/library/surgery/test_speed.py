"""What removal gains: counted where it can be, timed in turns where it has to be."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from scipy import stats

from mhprobe.backbones import attach, layout_of
from mhprobe.heads import KINDS
from mhprobe.report.figures import pruned as speed_figure
from mhprobe.surgery import costs
from mhprobe.surgery import speed as speed_module
from mhprobe.surgery.costs import interleaved, same_share_everywhere
from mhprobe.surgery.speed import median_interval, peak_memory, speed_table
from pruned import BACKBONES, network


def test_the_interval_of_a_median_holds_it_95_times_in_100():
    for count in (6, 15, 40):
        low, high = (median_interval([float(i) for i in range(count)])[side] for side in (1, 2))
        # how many values lie below the true median is binomial; it is outside if at most `low`, or
        # more than `high` do
        outside = stats.binom.cdf(low, count, 0.5) + stats.binom.sf(high, count, 0.5)
        assert outside <= 0.05 < outside + 2 * stats.binom.pmf(low + 1, count, 0.5)
    assert median_interval([1.0] * 5)[1:] == (-math.inf, math.inf)
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]) == (3.5, 1.0, 6.0)


def test_variants_are_timed_in_turn_and_each_begins():
    order = []
    works = [lambda name=name: order.append(name) for name in "abc"]
    times = interleaved(works, rounds=3, seconds=0.0)
    assert [len(t) for t in times] == [3, 3, 3] and all(t > 0 for row in times for t in row)
    assert (
        "".join(order[7:]) == "abc" + "bca" + "cab"
    )  # two warm-ups of each, one for the number of repeats


@pytest.mark.parametrize(("seconds", "repeats"), [(0.0, 1), (0.3, 3), (0.25, 3), (1.0, 10)])
def test_a_timing_repeats_short_works_and_is_the_time_of_one(monkeypatch, seconds, repeats):
    now, calls = [0.0], []

    def work(name, takes):
        calls.append(name)
        now[0] += takes

    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    works = [lambda: work("a", 0.1), lambda: work("b", 0.4)]
    times = interleaved(works, rounds=2, seconds=seconds)
    assert [pytest.approx(row) for row in times] == [[0.1, 0.1], [0.4, 0.4]]
    a, b = "a" * repeats, "b" * repeats
    assert "".join(calls) == "aabb" + "a" + a + b + b + a  # warm-up, how long one takes, two rounds


def test_heads_are_removed_evenly_and_one_always_stays():
    layout = layout_of(network("swin"))  # 2, 2, 3, 3 heads
    assert [int(part.sum()) for part in layout.split(same_share_everywhere(layout, 0.5))] == [
        1,
        1,
        2,
        2,
    ]
    assert [int(part.sum()) for part in layout.split(same_share_everywhere(layout, 1.0))] == [
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_speed_table_counts_what_removal_spares(kind):
    model = network(kind)
    rows = speed_table(model, batches=(1, 4), rounds=6, seconds=0.0)
    assert [(row["removed"], row["batch"]) for row in rows] == [
        (name, batch)
        for batch in (1, 4)
        for name in ("25 % removed", "50 % removed", "75 % removed")
    ]
    for row in rows:
        assert 0 < row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["pruned_low"] <= row["pruned_images_per_s"] <= row["pruned_high"]
        assert row["predicted"] == row["dense_flops"] / row["flops"] > 1
        assert (
            row["parameters"]
            < row["dense_parameters"]
            == sum(p.numel() for p in model.parameters())
        )
        assert row["peak_memory"] < row["dense_peak_memory"]
    assert model.training is False and not any(
        module._forward_pre_hooks for module in model.modules()
    )
    figure = speed_figure.speed(rows)
    assert len(figure.axes) == 2


def test_neurons_that_are_left_are_counted_beside_the_heads():
    """The table and the legend once told heads alone, whatever the neurons were."""
    model = network("vit")  # 2 blocks of 3 heads and 96 neurons
    attach(model, units=KINDS)
    mask = torch.arange(6 + 192) % 2 == 1
    mask[:6] = torch.tensor([0, 1, 1, 1, 1, 1])
    (row,) = speed_table(model, {"this mask": mask}, batches=(1,), rounds=1, seconds=0.0)
    assert (row["heads"], row["neurons"]) == (
        1,
        96,
    ) and "this mask:\n1 head and 96 neurons left" in labels([row])
    (row,) = speed_table(
        network("vit"), {"this mask": mask[:6]}, batches=(1,), rounds=1, seconds=0.0
    )
    assert row["heads"] == 1 and "neurons" not in row and "this mask:\n1 head left" in labels([row])


def labels(rows):
    """Texts of the figure's legend."""
    return [text.get_text() for text in speed_figure.speed(rows).axes[1].get_legend().get_texts()]


def test_a_speed_up_is_over_the_dense_network_and_round_by_round(monkeypatch):
    """A machine that slows down from round to round slows all variants alike."""
    seconds = [3.0, 2.0, 1.0, 0.75, 0.5]  # dense, masked, three that lost heads
    taken = [[each * slow for slow in (1, 2, 4, 8, 16, 32)] for each in seconds]
    monkeypatch.setattr(speed_module, "interleaved", lambda *_: taken)
    for row, times in zip(
        speed_table(network("vit"), batches=(1,), rounds=6), (3, 4, 6), strict=True
    ):
        assert [row[f"speedup{end}"] for end in ("", "_low", "_high")] == pytest.approx([times] * 3)
        assert row["over_masked"] == pytest.approx(times * 2 / 3)


def test_peak_memory_is_weights_and_what_lives_at_once():
    into, out = torch.nn.Linear(10, 1000, bias=False), torch.nn.Linear(1000, 10, bias=False)
    wide = torch.nn.Sequential(into, torch.nn.ReLU(), out)
    weights = 4 * 2 * 10 * 1000
    # ReLU holds its input and its output
    assert peak_memory(wide, torch.randn(5, 10)) == weights + 4 * 5 * 2 * 1000
    again = torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(5)])
    assert peak_memory(again, torch.randn(5, 10)) == 2 * 4 * 50  # earlier outputs are gone
