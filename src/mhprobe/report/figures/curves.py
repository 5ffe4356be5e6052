"""Accuracy against the number of heads masked, every curve of a run with its band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhprobe.report.figures.style import COLOURS, STYLE, blank, colour, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1.2, 1)))  # another one when the colours begin anew
LEVEL = 0.05  # of the test against the unmasked model


def draw(rows: Sequence[Mapping[str, Any]], num_heads: int, chance: float | None = None) -> Figure:
    """Accuracy in per cent over the number of heads masked, all curves of a run, each with its 95 % band.

    rows: as masking curves give them. Drawn is the last split that occurs, the one to report; thin and without a band
    the split that a searched curve was chosen on. A ring: the first step that is significantly less accurate than the
    unmasked model (McNemar, Holm over the curve). Of a random curve the mean over repeats is drawn, in grey.
    Dashed: the unmasked model. Dotted: chance. The axes end where the curves do: a short search is seen large, and
    chance only where some curve comes near it.
    """
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    split = rows[-1]["split"]
    lines = _lines([row for row in rows if row["split"] == split])
    searched = [name for name in dict.fromkeys(row["curve"] for row in rows) if lines[name][0]["seed"] != "mean"]
    tall = max(3.2, 0.2 + 0.17 * (len(lines) + 4))  # the legend stands beside the axes
    with rc_context(STYLE):
        figure = blank((5.75, tall))
        axes = place(figure, 0.55, 0.5, 3.6, tall - 0.7)
        for chosen_on in dict.fromkeys(row["split"] for row in rows if row["split"] != split):
            for name, points in _lines([row for row in rows if row["split"] == chosen_on]).items():
                if name in searched and len(points) > 1:
                    shade, _, dashes = _look(searched.index(name))
                    axes.plot(
                        *_points(points), color=shade, linestyle=dashes, linewidth=0.5, label=f"_{name}, {chosen_on}"
                    )
            axes.plot([], [], color="0.3", linewidth=0.5, label=f"thin: {chosen_on}")
        rings = False
        for name, points in lines.items():
            averaged = name not in searched
            shade, marker, dashes = ("0.45", "", "-") if averaged else _look(searched.index(name))
            heads, accuracy = _points(points)
            low, high = ([100 * point[key] for point in points] for key in ("low", "high"))
            if len(points) == 1:
                below, above = accuracy[0] - low[0], high[0] - accuracy[0]
                axes.errorbar(heads, accuracy, [[below], [above]], color=shade, marker=marker or "_", ms=4, label=name)
                continue
            every = -(-len(points) // 13)  # markers of a step each would hide a long curve
            look: dict[str, Any] = {"color": shade, "linestyle": dashes, "marker": marker, "markersize": 3}
            axes.plot(heads, accuracy, label=name, markevery=every, **look)
            shadow = 0.15 if len(lines) <= 6 else 0.06  # many bands on each other would hide the lines
            axes.fill_between(heads, low, high, color=shade, alpha=0.3 if averaged else shadow, linewidth=0)
            rings |= _ring(axes, points, shade)
        if rings:
            axes.plot([], [], "o", color="0.3", markersize=7, markerfacecolor="none", label="first sign. lower")
        unmasked = [point["accuracy"] for points in lines.values() for point in points if point["step"] == 0]
        if unmasked:
            axes.axhline(100 * unmasked[0], color="0.3", linestyle="--", linewidth=0.8, zorder=1, label="unmasked")
        bottom, top, right = _range(rows, num_heads)
        if chance is not None and 100 * chance > bottom:
            axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, zorder=1, label="chance")
        axes.set_xlim(-0.02 * right, 1.02 * right)
        axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"heads masked (of {num_heads})")
        axes.set_ylabel(f"{split} accuracy (%)")
        handles = {str(handle.get_label()): handle for handle in axes.get_legend_handles_labels()[0]}
        notes = [name for name in handles if name not in lines]
        shown = [*lines, *notes]
        axes.legend(
            [handles[name] for name in shown], shown, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0
        )
    return figure


def _look(number: int) -> tuple[str, str, Any]:
    """Colour, marker and dashes of the curve at this place in the configuration."""
    return *colour(number), DASHES[number // len(COLOURS) % len(DASHES)]


def _range(rows: Sequence[Mapping[str, Any]], num_heads: int) -> tuple[float, float, float]:
    """Lowest and highest accuracy in per cent, and most heads, of the axes; all of both for points of a sweep."""
    right = max(row["heads_masked"] for row in rows)
    if right == 0 or len({row["step"] for row in rows}) == 1:
        return -2, 102, num_heads
    low, high = 100 * min(row["low"] for row in rows), 100 * max(row["high"] for row in rows)
    room = 0.05 * (high - low) + 1
    return (-2 if low < 25 else low - room), min(102, high + room), right


def _points(points: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [point["heads_masked"] for point in points], [100 * point["accuracy"] for point in points]


def _ring(axes: Axes, points: Sequence[Mapping[str, Any]], shade: str) -> bool:
    """Around the first point that is significantly below the first one; whether there is any."""
    for point in points:
        tested = point.get("p_holm", "") != ""
        if tested and point["p_holm"] < LEVEL and point["accuracy"] < points[0]["accuracy"]:
            axes.plot(*_points([point]), "o", color=shade, markersize=7, markerfacecolor="none", label="_ring")
            return True
    return False


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Per curve the points to draw: the mean over repeats if there is one. Best kept first, as on the page."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    for name, points in curves.items():
        curves[name] = [point for point in points if point["seed"] == "mean"] or points
    mean = {name: sum(point["accuracy"] for point in points) / len(points) for name, points in curves.items()}
    return dict(sorted(curves.items(), key=lambda curve: -mean[curve[0]]))
