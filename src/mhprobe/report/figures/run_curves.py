"""Masking curves of several runs: the mean of each group with its band, a panel per curve."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, panel_grid, place

CAPTION = (
    "Masking curves of several runs. A line is the mean of runs that differ in their seed, its band Student's 95 % "
    "interval over three of these runs or more; of a single run it is the interval over images, of two there is none."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure.

    rows: group, curve, split, heads_masked, runs, accuracy, low, high, of. The test split where there is one.
    """
    splits = {row["split"] for row in rows}
    shown = [row for row in rows if row["split"] == ("test" if "test" in splits else sorted(splits)[0])]
    curves = list(dict.fromkeys(row["curve"] for row in shown))
    groups = list(dict.fromkeys(row["group"] for row in shown))
    scored = " or ".join(dict.fromkeys(row["of"] for row in shown))
    deep, per_row = panel_grid(len(curves))
    axis = textwrap.wrap(f"{shown[0]['split']} {scored} (%)", 30)
    side, gap, left, bottom = 1.6, 0.28, 0.5 + 0.1 * len(axis), 0.65 + 0.17 * len(groups)
    top = bottom + deep * side + (deep - 1) * (gap + 0.35) + 0.25
    with canvas((max(3.6, left + per_row * (side + gap)), top)) as figure:
        for number, curve in enumerate(curves):
            row_at, column = divmod(number, per_row)
            y = top - 0.25 - side - row_at * (side + gap + 0.35)
            axes = place(figure, left + column * (side + gap), y, side, side)
            for index, group in enumerate(groups):
                own = [row for row in shown if (row["curve"], row["group"]) == (curve, group)]
                shade, marker = colour(index)
                heads = [row["heads_masked"] for row in own]
                axes.plot(heads, [100 * row["accuracy"] for row in own], marker, ls="-", ms=2, color=shade)
                band = [row for row in own if row["low"] not in ("", None) and row["runs"] != 2]
                low, high = ([100 * row[name] for row in band] for name in ("low", "high"))
                axes.fill_between([row["heads_masked"] for row in band], low, high, color=shade, alpha=0.2, linewidth=0)
            axes.set_title(curve, pad=3)
            axes.set_ylim(-2, 102)
            axes.set_yticks([0, 50, 100], None if column == 0 else [""] * 3)
            axes.set(xlabel="heads masked", ylabel="\n".join(axis) if column == 0 else "")
        names = [_said(group, {row["runs"] for row in shown if row["group"] == group}) for group in groups]
        figure.legend(figure.axes[0].get_lines(), names, loc="lower left", ncols=1, borderaxespad=0.3)
    return figure


def _said(group: str, runs: set[int]) -> str:
    """Return the legend of a line and its band. runs: at its points, some of which not all runs may have."""
    few, most = min(runs), max(runs)
    of = "one run" if most == 1 else f"mean of {most} runs" if few == most else f"mean of {few} to {most} runs"
    band = "" if most == 2 else f", band: 95 % over {'images' if most == 1 else 'runs'}"
    if group == "all runs":
        return of + band
    return f"{group if len(group) <= 60 else group[:59] + '…'}: {of}{band}"
