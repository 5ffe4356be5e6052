"""Accuracy against the number of heads masked, every curve of a run with its band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mhprobe.report.figures.style import STYLE, blank, colour, place

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(rows: Sequence[Mapping[str, Any]], num_heads: int, chance: float | None = None) -> Figure:
    """Accuracy in per cent over the number of heads masked, all curves of a run, each with its 95 % band.

    rows: as masking curves give them. Drawn is the last split that occurs, the one to report. Of a random curve the
    mean over repeats is drawn, in grey. Dashed: the unmasked model. Dotted: chance.
    """
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    split = rows[-1]["split"]
    lines = _lines([row for row in rows if row["split"] == split])
    with rc_context(STYLE):
        figure = blank((5.6, 3.2))
        axes = place(figure, 0.55, 0.5, 3.6, 2.5)
        searched = [name for name in dict.fromkeys(row["curve"] for row in rows) if lines[name][0]["seed"] != "mean"]
        for name, points in lines.items():
            averaged = name not in searched
            shade, marker = ("0.45", "") if averaged else colour(searched.index(name))
            heads = [point["heads_masked"] for point in points]
            accuracy, low, high = ([100 * point[key] for point in points] for key in ("accuracy", "low", "high"))
            if len(points) == 1:
                below, above = accuracy[0] - low[0], high[0] - accuracy[0]
                axes.errorbar(heads, accuracy, [[below], [above]], color=shade, marker=marker or "_", ms=4, label=name)
                continue
            axes.plot(heads, accuracy, color=shade, marker=marker, markersize=3, label=name)
            axes.fill_between(heads, low, high, color=shade, alpha=0.3 if averaged else 0.15, linewidth=0)
        unmasked = [point["accuracy"] for points in lines.values() for point in points if point["step"] == 0]
        if unmasked:
            axes.axhline(100 * unmasked[0], color="0.3", linestyle="--", linewidth=0.8, zorder=1, label="unmasked")
        if chance is not None:
            axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, zorder=1, label="chance")
        axes.set_xlim(-0.02 * num_heads, 1.02 * num_heads)
        axes.set_ylim(-2, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"heads masked (of {num_heads})")
        axes.set_ylabel(f"{split} accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Per curve the points to draw: the mean over repeats if there is one. Best kept first, as on the page."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    for name, points in curves.items():
        curves[name] = [point for point in points if point["seed"] == "mean"] or points
    mean = {name: sum(point["accuracy"] for point in points) / len(points) for name, points in curves.items()}
    return dict(sorted(curves.items(), key=lambda curve: -mean[curve[0]]))
