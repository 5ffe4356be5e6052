"""Figures of pruned networks: accuracy and speed at each size, and which heads are kept."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.colors import ListedColormap
from torch import Tensor

from mhprobe.heads import KINDS, HeadLayout
from mhprobe.io.written import counted, percent
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure
from mhprobe.stats.ranking import STAGES
from mhprobe.stats.significance import wilson
from mhprobe.stats.survival import Survivors

# a function of heads has its colour in every figure; their order is that of measures/parts/functions.py
LABEL_SHADES = {
    "positional": COLOURS[0],
    "CLS": COLOURS[1],
    "registers": COLOURS[2],
    "rare": COLOURS[3],
    "object": COLOURS[4],
    "diffuse": COLOURS[5],
    "local": "#F0E442",
    "global": "#8C510A",
    "window": "#01665E",
    "mixed": "#999999",
    "unknown": "#DDDDDD",
}
PALE = "#DCE6EE"
ONE_COLUMN = 14  # lines of a legend


@captioned(
    "Accuracy against the number of heads kept, a point per run of the sweep. Bands are 95 % "
    "intervals over "
    "images, the dashed line is the whole model, the dotted line guessing. Picking the best point "
    "of many "
    "flatters."
)
def retained(
    points: Sequence[Sequence[float]], images: int, heads: int, before: float | None, chance: float
) -> Figure:
    """Accuracy of the runs of a sweep over learned gates.

    points: (heads kept, test accuracy with the gates as learned, with gates of 0 and 1), by heads
    kept. images: number of test images. before: accuracy of the whole model, if known. chance:
    drawn if a run comes near it.
    """
    kept = [point[0] for point in points]
    with style.panel((3.4, 2.5), (0.55, 0.5, 1.65, 0.2)) as (figure, axes):
        ends = [] if before is None else [100 * before]
        for number, name in enumerate(("gates as learned", "gates of 0 and 1"), 1):
            shade, marker = style.colour(number - 1)
            accuracy, low, high = _percents([point[number] for point in points], images)
            ends += [*low, *high]
            style.band(
                axes, kept, (accuracy, low, high), shade, marker=marker, markersize=4, label=name
            )
        axes.fill_between([], [], [], color="0.3", alpha=0.15, lw=0, label="95 % over images")
        if before is not None:
            style.level(axes, 100 * before, "whole model before", zorder=1)
        limits = min(ends) - 3, min(max(ends) + 3, 100.5)
        if min(ends) < 100 * chance + 30:  # else the axis would be empty down to it
            style.level(axes, 100 * chance, "chance", ":", zorder=1)
            limits = -2, 102
        axes.set(xlim=(-0.02 * heads, 1.02 * heads), ylim=limits)
        style.whole_ticks(axes.xaxis)
        axes.set(xlabel=f"heads kept (of {heads})", ylabel="test accuracy (%)")
        style.legend_beside(axes)
    return figure


def _percents(shares: Sequence[float], images: int) -> tuple[list[float], list[float], list[float]]:
    """Return accuracies and the ends of their 95 % intervals over images, in per cent."""
    low, high = wilson(
        torch.tensor([round(share * images) for share in shares]), torch.tensor(images)
    )
    return [100 * share for share in shares], (100 * low).tolist(), (100 * high).tolist()


@captioned(
    "Accuracy of heads pruned from a trained model, against the same number of heads trained from "
    "scratch; bars are "
    "95 % intervals over images, grey is the whole model. A star: the two differ on the same "
    "images (McNemar, "
    "p < .05 after Holm). Without one, training the larger model first has not been shown to help. "
    "Dotted: guessing."
)
def voita(
    points: Sequence[tuple[int, float, float]],
    images: int,
    chance: float,
    sure: Sequence[bool] = (),
) -> Figure:
    """Accuracy of heads pruned from a trained model and of the same heads from scratch, at each number of heads.

    points: (heads, accuracy pruned, accuracy from scratch), the whole model first. images: number
    of test images.
    sure: points at which the two differ significantly; a star marks them.
    """
    with style.panel((2.7, 2.25), (0.55, 0.5, 2.25, 0.15)) as (figure, axes):
        look: Any = {"color": "0.4", "marker": "D", "label": "whole model"}
        _dots_with_bars(axes, [0], _percents([points[0][1]], images), look)
        for number, name in ((1, "pruned from trained"), (2, "same heads from scratch")):
            shade, marker = style.colour(number - 1)
            at = [x + 0.16 * (number - 1.5) for x in range(1, len(points))]
            ends = _percents([point[number] for point in points[1:]], images)
            _dots_with_bars(axes, at, ends, {"color": shade, "marker": marker, "label": name})
        if 100 * min(min(point[1:]) for point in points) < 100 * chance + 30:
            style.level(axes, 100 * chance, "chance", ":")
        whole, *fewer = [str(point[0]) for point in points]
        axes.set_xticks(range(len(points)), [f"{whole} (all)", *fewer])
        _stars(axes, {x: 100 * max(points[x][1:]) for x, on in enumerate(sure) if on})
        axes.set(
            xlim=(-0.5, len(points) - 0.5),
            xlabel="heads kept",
            ylabel="test accuracy (%), 95 % interval",
        )
        star = "the two differ, p < .05\n(McNemar, Holm)" if any(sure) else ""
        style.legend_beside(axes, star=star)
    return figure


def _dots_with_bars(
    axes: Axes, at: Sequence[float], ends: Sequence[Sequence[float]], look: Mapping[str, Any]
) -> None:
    """Draw points with their intervals, no line between them."""
    style.whiskers(axes, at, ends, ms=4, ls="none", elinewidth=1, capsize=2, **look)


def _stars(axes: Axes, heights: Mapping[int, float]) -> None:
    """Draw a star above each place. heights: of what is below it."""
    for x, height in heights.items():
        axes.annotate("*", (x, height), xytext=(0, 8), textcoords="offset points", ha="center")


@captioned(
    "Which heads pruning keeps, by stage, block or function: the share of each group's heads that "
    "is left, by the "
    "number of heads kept. A pruning that took heads at random would keep the same share of every "
    "group: the dotted "
    "line. A head with several functions is in several groups. Points on each other are moved "
    "apart sideways."
)
def survival(rows: Sequence[Survivors]) -> Figure:
    """A panel per division (those with several groups, and label).

    Lines are means of runs that keep as many.
    """
    once = next(
        (row.by for row in rows if row.by != "label"), None
    )  # a division that has each head once
    heads = sum({row.group: row.of for row in rows if row.by == once}.values())
    groups = {
        by: {row.group for row in rows if row.by == by}
        for by in dict.fromkeys(row.by for row in rows)
    }
    divisions = [
        by for by, names in groups.items() if by == "label" or len(names) > 1
    ]  # one stage tells nothing
    gap = (
        2.6 if any(len(groups[by]) > ONE_COLUMN for by in divisions) else 1.95
    )  # where the legend and an axis are
    size, edges = (2.3, 2.3), (0.55, 0.5, gap, 0.3)
    with style.grid(len(divisions), size, (gap, 0.8), edges, per_row=2) as (figure, places):
        for (axes, _, _), by in zip(places, divisions, strict=True):
            _groups_kept(axes, [row for row in rows if row.by == by], by, heads)
    return figure


def _groups_kept(axes: Axes, rows: Sequence[Survivors], by: str, heads: int) -> None:
    size = {row.group: row.of for row in rows}
    groups = [label for label in LABEL_SHADES if label in size] if by == "label" else list(size)
    axes.plot([0, heads], [0, 100], color="0.5", ls=":", lw=1, label="at random", zorder=1)
    last = max(1, len(groups) - 1)
    for number, group in enumerate(groups):
        look = _look_of_group(number, group, by)
        shares = _shares_kept(rows, group, heads)
        # groups of few heads often keep the same share: side by side by a little, not on each other
        aside = 0.012 * heads * (number - (len(groups) - 1) / 2) / last
        means = [(x + aside, statistics.fmean(runs)) for x, runs in shares.items()]
        dots = [(x + aside, share) for x, runs in shares.items() for share in runs]
        axes.plot(*zip(*means, strict=True), color=look.shade, lw=1.2, ls=look.dashes)
        axes.plot(
            *zip(*dots, strict=True),
            look.marker,
            color=look.shade,
            mfc=look.face,
            ms=3.5,
            label=f"{group} ({size[group]})",
        )
    axes.set(xlim=(-0.02 * heads, 1.03 * heads), ylim=(-4, 104))
    axes.set(xlabel="heads kept", ylabel="heads of the group kept (%)")
    axes.set_title(f"by {'function' if by == 'label' else by}", loc="left", pad=4)
    style.legend_beside(
        axes, 1.0, borderaxespad=0.3, handlelength=1.0, ncols=1 + (len(groups) > ONE_COLUMN)
    )


class _GroupLook(NamedTuple):
    """The line of a group and its points. face: of the markers."""

    shade: str
    face: str
    marker: str
    dashes: str


def _look_of_group(number: int, group: str, by: str) -> _GroupLook:
    """Return the look of a group: dashed and hollow in the colours' second round."""
    shade = LABEL_SHADES.get(group, style.colour(number)[0])
    marker = MARKERS[number % len(MARKERS)]
    if by != "label" and number >= len(COLOURS):
        return _GroupLook(shade, "white", marker, "--")
    return _GroupLook(shade, shade, marker, "-")


def _shares_kept(rows: Sequence[Survivors], group: str, heads: int) -> dict[int, list[float]]:
    """Return a group's shares in per cent, of each run, by its number of heads kept: few first, all last."""
    shares: dict[int, list[float]] = {heads: [100.0]}
    for row in rows:
        if row.group == group:
            shares.setdefault(row.heads, []).append(100 * row.kept / row.of)
    return dict(sorted(shares.items()))


@captioned(
    "Dark heads are left, pale ones gone; a row is a block, from input to output. Beside, where "
    "neurons could go, the "
    "share of each block's neurons that is left. At random all blocks would keep about the same "
    "share."
)
def kept(layout: HeadLayout, left: Tensor) -> Figure:
    """Heads that are left, and beside them the share of each block's neurons.

    left: (A,) True for a unit that stays.
    """
    heads = layout.of("head")
    parts = zip(layout.sites, layout.split(left.float()), strict=True)
    shares = {
        (site.stage, site.block): part.mean().item()
        for site, part in parts
        if site.kind == "neuron"
    }
    widest = max(site.num_heads for site in heads.sites)
    cell = min(0.3, 5.0 / widest)  # inches
    start, wide, tall = (
        widest - 0.5 + 0.25 / cell,
        1.4 / cell,
        style.matrix_height(heads, cell),
    )  # of bars, in cells
    with style.canvas((cell * widest + (2.9 if shares else 1.2), tall + 1.05)) as figure:
        look: Any = {"cmap": ListedColormap([PALE, COLOURS[0]]), "vmin": 0, "vmax": 1}
        style.head_matrix(
            figure, heads, left[: heads.num_heads].float(), 0.6, tall + 0.5, cell, **look
        )
        for axes, sites in zip(list(figure.axes), style.even_groups(heads), strict=True):
            for row, site in enumerate(heads.sites[i] for i in sites):
                if (share := shares.get((site.stage, site.block))) is not None:
                    for end, shade in ((1, PALE), (share, COLOURS[0])):
                        style.box(
                            axes,
                            (start, row - 0.35),
                            wide * end,
                            0.7,
                            color=shade,
                            lw=0,
                            clip_on=False,
                        )
                    axes.text(start + 1.05 * wide, row, percent(share), va="center", fontsize=7)
        figure.text(0.02, 0.98, "dark: left; pale: gone", va="top")
        figure.axes[0].text(start, -0.8, "neurons left" if shares else "")
    return figure


@captioned(
    "How much faster the pruned network is than the dense one. Bars are 95 % intervals over rounds "
    "of timing, the "
    "dashed line is what its FLOPs predict, 1 is no gain. Measured on the machine named above, and "
    "true there."
)
def speed(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Speed-up over the dense network, and images per second.

    rows: of surgery.speed.speed_table.
    """
    by_removed: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_removed.setdefault(row["removed"], []).append(row)
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    at = range(len(batches))
    with style.canvas((8.3, 3.1)) as figure:
        gain = style.axes_at(figure, 0.55, 0.5, 2.5, 2.3)
        rate = style.axes_at(figure, 3.75, 0.5, 2.2, 2.3)
        for number, (name, points) in enumerate(by_removed.items()):
            shade, marker = style.colour(number)
            look: Any = {"color": shade, "marker": marker, "markersize": 3}
            # side by side, so that intervals do not hide each other
            aside = [place + 0.1 * (number - (len(by_removed) - 1) / 2) for place in at]
            _draw_gain(gain, aside, points, name, look)
            rate.plot(at, [row["pruned_images_per_s"] for row in points], **look)
        first = next(iter(by_removed.values()))  # dense and masked are the same for all
        for kind, dashes in (("dense", "-"), ("masked", ":")):
            y = [row[f"{kind}_images_per_s"] for row in first]
            rate.plot(at, y, color="0.3", linestyle=dashes, label=kind)
        gain.plot([], [], color="0.3", linestyle="--", linewidth=0.8, label="predicted from FLOPs")
        style.level(gain, 1, dashes="-", zorder=0)
        gain.set_ylabel("times as fast as dense")
        rate.set(ylabel="images per second", yscale="log")
        style.log_ticks(rate.yaxis)
        gain.set_title(f"{rows[0]['device']}; bars: 95 % interval", loc="left")
        handles = []
        for axes in (gain, rate):
            axes.set_xticks(at, list(map(str, batches)))
            axes.set_xlabel("batch size")
            handles += axes.get_legend_handles_labels()[0]
        style.legend_beside(rate, 1.03, handles=handles)
    return figure


def _draw_gain(
    axes: Axes,
    at: Sequence[float],
    points: Sequence[Mapping[str, Any]],
    name: str,
    look: Mapping[str, Any],
) -> None:
    """Draw the speed-up of one pruned network, its intervals where they are finite, and what FLOPs predict."""
    y, low, high = ([row[f"speedup{end}"] for row in points] for end in ("", "_low", "_high"))
    finite = all(map(math.isfinite, [*low, *high]))
    ends = (y, low, high) if finite else (y, y, y)
    left = [counted(points[0][f"{kind}s"], kind) for kind in KINDS if f"{kind}s" in points[0]]
    style.whiskers(axes, at, ends, **look, lw=1, label=f"{name}:\n{' and '.join(left)} left")
    style.level(axes, points[0]["predicted"], color=look["color"], zorder=0)


@captioned(
    "Accuracy of methods of pruning, best at the smallest budget first, against the FLOPs that are "
    "left, and against "
    "the measured time of a batch, over the dense network's (star). Lines are means over seeds (or "
    "networks), bands go "
    "from the lowest to the highest. Up and left is better; lines that overlap by their bands may "
    "be equal."
)
def pareto(rows: Sequence[Mapping[str, Any]], batch: int = 64) -> Figure:
    """Accuracy of pruning methods against the FLOPs, and the time, that are left.

    rows: of ``surgery.bench.run_cell``, with method, budget and seed; the last stage that all have
    is drawn.
    batch: the batch size of the measured time; without timings there is no right side.
    """
    stage = _last_stage(rows)
    of_methods = _by_method(rows, stage)
    dense = statistics.fmean(row["dense"] for row in rows)
    costs = _costs(rows, batch)
    right = 0.5 + 0.065 * max(map(len, [*of_methods, "dense"]))  # inches of the legend
    with style.grid(len(costs), (2.4, 2.4), (0.45, 0), (0.6, 0.5, right, 0.3)) as (figure, places):
        for (axes, first, _), (label, cost) in zip(places, costs.items(), strict=True):
            for number, (method, of_method) in enumerate(of_methods.items()):
                x = [statistics.fmean(map(cost, cells)) for cells in of_method]
                y = [[100 * row[stage] for row in cells] for cells in of_method]
                _method(axes, number, method, x, y)
            axes.plot(1, 100 * dense, "*", color="0.2", markersize=8, label="dense", zorder=3)
            left = list(map(cost, rows))
            limits = (min(left) - 0.1, max(1.0, *left) + 0.05)  # slower than dense, some are
            axes.set(
                xlabel=label, xlim=limits, ylabel=f"test accuracy, {stage} (%)" if first else ""
            )
        style.legend_beside(axes, 1.03)
    return figure


def _last_stage(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the last stage that all rows have an accuracy of."""
    return next(name for name in reversed(STAGES) if all(name in row for row in rows))


def _costs(
    rows: Sequence[Mapping[str, Any]], batch: int
) -> dict[str, Callable[[Mapping[str, Any]], float]]:
    """Return ways to read a row's cost, as a share of the dense network's: time where every row was timed."""
    timed = f"speedup_{batch}"
    costs: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "share of FLOPs left": lambda row: row["flops"]
    }
    if all(timed in row for row in rows):
        costs[f"share of time left, batch {batch}"] = lambda row: 1 / row[timed]
    return costs


def _by_method(
    rows: Sequence[Mapping[str, Any]], stage: str
) -> dict[str, list[list[Mapping[str, Any]]]]:
    """Return the rows of each method at each of its budgets: smallest budget first, best method at it first."""
    cells: dict[tuple[Any, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["budget"], row["method"]), []).append(row)

    def place(cell: tuple[Any, str]) -> tuple[Any, float]:
        return cell[0], -statistics.fmean(row[stage] for row in cells[cell])

    of_methods: dict[str, list[list[Mapping[str, Any]]]] = {}
    for cell in sorted(cells, key=place):
        of_methods.setdefault(cell[1], []).append(cells[cell])
    return of_methods


def _method(
    axes: Axes, number: int, name: str, x: Sequence[float], y: Sequence[Sequence[float]]
) -> None:
    """Draw a method: a line of its means, a band from the lowest to the highest. y: all seeds at each x."""
    shade, marker = style.colour(number)
    ends = [[*map(statistics.fmean, y)], [*map(min, y)], [*map(max, y)]]
    again: Any = {"ls": "--", "mfc": "white"} if number >= len(COLOURS) else {}
    style.band(axes, x, ends, shade, marker=marker, markersize=3, lw=1, label=name, **again)
