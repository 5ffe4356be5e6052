"""Figures of several runs, of two data sets, and of measures against each other."""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, Axes, Figure
from mhprobe.report.tables import Table
from mhprobe.stats.agreement import Agreement, Pearson


@captioned(
    "Test accuracy of several runs. A dot is a run, its bar the 95 % interval over images. A "
    "diamond is the mean "
    "of three runs or more that differ in their seed, its bar Student's 95 % interval over them, "
    "of what another gives."
)
def runs(rows: Sequence[Mapping[str, Any]], groups: Table | None) -> Figure:
    """A row per group.

    rows: run, group, accuracy, low, high. groups: group, runs, accuracy, low, high.

    Groups of two have no mean: Student's interval would cover most of the axis.
    """
    names = list(dict.fromkeys(row["group"] for row in rows))
    members = [[row for row in rows if row["group"] == name] for name in names]
    labels = _wrapped(names)
    lines = 1 + max(label.count("\n") for label in labels)
    tall = 0.1 + len(names) * max(0.34, 0.13 * (max(map(len, members)) + 1), 0.13 * (lines + 1))
    left = 0.3 + 0.066 * max(map(len, "\n".join(labels).split("\n")))
    means = {} if groups is None else _with_means(groups)
    with style.panel((3.2, tall), (left, 0.5, 0.2, 0.35)) as (figure, axes):
        for number, (name, dots) in enumerate(zip(names, members, strict=True)):
            _dots(axes, number, dots)
            if name in means:
                _mean(axes, number + 0.3, means[name])
        style.name_rows(axes, labels)
        axes.set_xlabel("test accuracy (%)")
        handles = {str(h.get_label()): h for h in axes.get_legend_handles_labels()[0]}
        style.legend_above(axes, right=True, handles=list(handles.values()))
    return figure


def _wrapped(names: Sequence[str]) -> list[str]:
    """Return names of groups, shortened, in lines that fit beside the axes."""
    return ["\n".join(textwrap.wrap(name, 46) or [name]) for name in _shortened(names)]


def _with_means(groups: Table) -> dict[str, dict[str, Any]]:
    """Return the groups of three runs or more, by name: their mean is drawn."""
    return {row["group"]: row for row in groups.dicts() if row["runs"] >= 3}


@captioned(
    "Masking curves of several runs. A line is the mean of runs that differ in their seed, its "
    "band Student's 95 % "
    "interval over three of these runs or more; of a single run it is the interval over images, of "
    "two there is none."
)
def run_curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel per curve, of the test split.

    rows: group, curve, split, heads_masked, runs, accuracy, low, high, of.
    """
    shown = _of_one_split(rows)
    curves = list(dict.fromkeys(row["curve"] for row in shown))
    groups = list(dict.fromkeys(row["group"] for row in shown))
    scored = " or ".join(dict.fromkeys(row["of"] for row in shown))
    axis = textwrap.wrap(f"{shown[0]['split']} {scored} (%)", 30)
    gap, edges = (0.28, 0.63), (0.5 + 0.1 * len(axis), 0.65 + 0.17 * len(groups), 0.28, 0.25)
    with style.grid(len(curves), (1.6, 1.6), gap, edges, 3.6) as (figure, places):
        for (axes, first, _), curve in zip(places, curves, strict=True):
            for index, group in enumerate(groups):
                points = [row for row in shown if (row["curve"], row["group"]) == (curve, group)]
                _curve(axes, index, points)
            axes.set_title(curve, pad=3)
            axes.set_yticks([0, 50, 100], None if first else [""] * 3)
            axes.set(ylim=(-2, 102), xlabel="heads masked", ylabel="\n".join(axis) if first else "")
        figure.legend(
            figure.axes[0].get_lines(),
            _legends(shown),
            loc="lower left",
            ncols=1,
            borderaxespad=0.3,
        )
    return figure


def _of_one_split(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the test split, of another where none is of it."""
    splits = {row["split"] for row in rows}
    split = "test" if "test" in splits else sorted(splits)[0]
    return [row for row in rows if row["split"] == split]


def _legends(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the legend of each group, in the order in which groups appear."""
    numbers: dict[str, set[int]] = {}
    for row in rows:
        numbers.setdefault(row["group"], set()).add(row["runs"])
    return [_legend_of(group, runs) for group, runs in numbers.items()]


def _curve(axes: Axes, number: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Draw the curve of one group, and its band: over images of one run, or over three runs or more."""
    shade, marker = style.colour(number)
    (accuracy,) = style.in_percent(points, "accuracy")
    masked = [row["heads_masked"] for row in points]
    axes.plot(masked, accuracy, marker, ls="-", ms=2, color=shade)
    band = [row for row in points if row["low"] not in ("", None) and row["runs"] != 2]
    low, high = style.in_percent(band, "low", "high")
    masked = [row["heads_masked"] for row in band]
    axes.fill_between(masked, low, high, color=shade, alpha=0.2, linewidth=0)


def _shortened(names: Sequence[str]) -> list[str]:
    """Return settings without their sections, where no other then reads alike: backbone.depth=2 -> depth=2."""
    keys = {key for name in names for key in re.findall(r"[\w.]+(?==)", name)}
    if len({key.split(".")[-1] for key in keys}) < len(keys):
        return list(names)
    return [re.sub(r"[\w.]+\.(\w+=)", r"\1", name) for name in names]


def _dots(axes: Axes, number: int, runs_of_group: Sequence[Mapping[str, Any]]) -> None:
    """Draw the runs of a group below each other, each with its interval, at the group's height."""
    count = len(runs_of_group)
    at = [number - 0.3 + 0.45 * (place + 0.5) / count for place in range(count)]
    shares, low, high = style.in_percent(runs_of_group, "accuracy", "low", "high")
    axes.hlines(at, low, high, color=COLOURS[4], linewidth=1.2)
    label = "" if number else "a run, 95 % over images"
    axes.plot(shares, at, "o", color=COLOURS[0], markersize=3, label=label)


def _mean(axes: Axes, y: float, group: Mapping[str, Any]) -> None:
    """Draw the mean of a group of runs, with its interval, at a height."""
    low, high = 100 * group["low"], 100 * group["high"]
    axes.hlines(y, low, high, color=COLOURS[1], linewidth=1.6)
    mark: Any = {"color": COLOURS[1], "markersize": 4, "label": "mean, 95 % over runs"}
    axes.plot(100 * group["accuracy"], y, "D", **mark)


def _legend_of(group: str, runs: set[int]) -> str:
    """Return the legend of a line and its band. runs: numbers of runs at its points."""
    few = min(runs)
    most = max(runs)
    of = (
        "one run"
        if most == 1
        else f"mean of {most} runs"
        if few == most
        else f"mean of {few} to {most} runs"
    )
    band = "" if most == 2 else f", band: 95 % over {'images' if most == 1 else 'runs'}"
    if group == "all runs":
        return of + band
    return f"{group if len(group) <= 60 else group[:59] + '…'}: {of}{band}"


@captioned(
    "Do runs rank the heads alike? A dot per two runs: 1 the same order, 0 none. Runs of other "
    "training seeds have "
    "other heads under the same numbers: there a correlation can only come from the blocks that "
    "heads are in."
)
def run_agreement(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Rank correlations between every two runs, a row per measure.

    rows: measure, run_a, run_b, spearman.
    """
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    edges = (0.35 + 0.065 * max(map(len, measures)), 0.5, 0.2, 0.15)
    with style.panel((3.1, 0.24 * len(measures) + 0.15), edges) as (figure, axes):
        for number, measure in enumerate(measures):
            correlations = [row["spearman"] for row in rows if row["measure"] == measure]
            axes.plot(
                correlations,
                [number] * len(correlations),
                "o",
                color=COLOURS[0],
                markersize=4,
                alpha=0.7,
            )
        axes.axvline(0, color="0.4", linestyle="--", linewidth=0.8)
        style.name_rows(axes, [name.replace("_", " ") for name in measures])
        axes.set(xlim=(-1.04, 1.04), xlabel="Spearman's correlation over heads, every two runs")
    return figure


@captioned(
    "Each head on two data sets, a panel per measure. On the grey line both agree. r near 0 would "
    "be chance: the "
    "measure told about the images, not about the head. In brackets the 95 % interval of r over "
    "heads."
)
def scatter(
    layout: HeadLayout,
    measures: Sequence[tuple[str, Tensor, Tensor, Pearson]],
    first: str,
    second: str,
) -> Figure:
    """A panel per measure: name, (A,) value on the first and on the second data set, and their correlation."""
    size, gap, edges = (1.45, 1.45), (0.66, 0.8), (0.62, 0.5, 0.8, 0.5)  # above: two lines of title
    wide, tall = style.grid_size(len(measures), size, gap)
    block = torch.tensor([site.block for _, _, site in layout])
    shades = style.block_shades(layout)
    with style.grid(len(measures), size, gap, edges) as (figure, places):
        for (axes, leftmost, last), (name, x, y, r) in zip(places, measures, strict=True):
            finite = x.isfinite() & y.isfinite()
            if finite.any():
                style.line_of_equality(axes, x[finite], y[finite])
            axes.scatter(x[finite], y[finite], c=block[finite], norm=shades.norm, s=7, linewidths=0)
            spread = "" if math.isnan(r.low) else f" [{r.low:.2f}, {r.high:.2f}]"
            axes.set_title(f"{name}\nr = {r.r:.2f}{spread}", fontsize=7, loc="left", pad=3)
            axes.locator_params(nbins=4)
            axes.ticklabel_format(scilimits=(-2, 3), useMathText=True)
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_offset_text().set_fontsize(6)
            axes.set(
                xlabel=f"on {first}" if last else "", ylabel=f"on {second}" if leftmost else ""
            )
        style.block_bar(figure, shades, edges[0] + wide + 0.15, edges[1], min(tall, 3.0))
    return figure


@captioned(
    "Every two measures compared: how alike they rank all heads (left, Spearman's rho; unrelated "
    "rankings give "
    "about 0), and how many of their highest heads they share (right; the line on the colour bar "
    "is what random "
    "rankings share)."
)
def agreement(ranking: Agreement, control: Agreement | None = None) -> Figure:
    """Spearman's rho, and overlap of the k best heads; below them a control's, if there is one."""
    rows = [(ranking, "")]
    if control is not None:
        rows.append((control, ", random initialisation"))
    names = ranking.names
    count = len(names)
    edge = 0.2 + 0.065 * max(map(len, names))
    side = max(2.1, 0.3 * count)
    edges = (edge, edge, 1.05, 0.3)  # right: a colour bar, as in the gap
    with style.grid(2 * len(rows), (side, side), (1.05, 0.45), edges, per_row=2) as (
        figure,
        places,
    ):
        for number, (axes, first, last) in enumerate(places):
            result, which = rows[number // 2]
            matrix = _rank_correlation(result) if first else _shared_heads(result)
            _draw_likeness(axes, matrix)
            axes.set_title(matrix.title + which, loc="left", pad=4)
            axes.set_xticks(range(count), names if last else [], rotation=90)
            axes.set_yticks(range(count), names if first else [])
            style.bare(axes)
    return figure


class _Likeness(NamedTuple):
    """Likeness of every two measures. values: (M, M), at most 1.

    label, chance: written and marked at the colour bar. lowest: of the colours.
    """

    title: str
    values: Tensor
    label: str
    cmap: str
    lowest: int
    chance: float | None


def _rank_correlation(result: Agreement) -> _Likeness:
    label = "Spearman's rho over heads"
    return _Likeness("rank correlation", result.spearman, label, "RdBu_r", -1, None)


def _shared_heads(result: Agreement) -> _Likeness:
    known = result.chance[result.chance.isfinite()]
    chance = known.mean().item() if len(known) else None
    line = "" if chance is None else f" (line: chance {chance:.2g})"
    title, label = f"top {result.k} heads", "share in common" + line
    return _Likeness(title, result.overlap, label, "viridis", 0, chance)


def _draw_likeness(axes: Axes, matrix: _Likeness) -> None:
    """Draw the triangle below the diagonal, with its numbers and a colour bar."""
    values = matrix.values
    lower = values.masked_fill(torch.ones_like(values).triu(1).bool(), torch.nan)
    image = axes.imshow(lower.numpy(), cmap=matrix.cmap, vmin=matrix.lowest, vmax=1)
    for i, j in torch.tril_indices(*lower.shape).T.tolist():
        text = _in_a_cell(lower[i, j].item())
        axes.text(j, i, text, ha="center", va="center", fontsize=5.5)
    style.colour_text(axes)
    bar = style.bar_beside(axes, image, matrix.label, 0.1)
    if matrix.chance is not None:
        for shade, width in (("white", 1.6), (COLOURS[1], 1.0)):
            bar.ax.axhline(matrix.chance, color=shade, linewidth=width)


def _in_a_cell(value: float) -> str:
    """Return a number of -1 to 1 in as few letters as a small cell holds: .42, 1, and - for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.0f}"
