"""Accuracy of several runs: a dot per run with its interval over images, and per group the mean with its spread."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place
from mhprobe.report.tables import Table

CAPTION = (
    "Test accuracy of several runs. A dot is a run, its bar the 95 % interval over images. A diamond is the mean "
    "of three runs or more that differ in their seed, its bar Student's 95 % interval over them, of what another gives."
)


def draw(rows: Sequence[Mapping[str, Any]], groups: Table | None) -> Figure:
    """Return the figure.

    rows: run, group, accuracy, low, high. groups: group, runs, accuracy, low, high.

    Of fewer than three runs only the dots: Student's interval of two reaches over most of the axis and says nothing.
    """
    names = list(dict.fromkeys(row["group"] for row in rows))
    most = max(sum(row["group"] == name for row in rows) for name in names)
    labels = _labels(names)
    lines = max(label.count("\n") for label in labels) + 1
    step = max(0.34, 0.13 * (most + 1), 0.13 * (lines + 1))
    tall = step * len(names) + 0.1
    left = 0.3 + 0.066 * max(len(line) for label in labels for line in label.split("\n"))
    spread = {} if groups is None else {row[0]: dict(zip(groups.columns, row, strict=True)) for row in groups.rows}
    with canvas((left + 3.4, tall + 0.85)) as figure:
        axes = place(figure, left, 0.5, 3.2, tall)
        for number, name in enumerate(names):
            own = [row for row in rows if row["group"] == name]
            for place_of, row in enumerate(own):
                y = number - 0.3 + 0.45 * (place_of + 0.5) / len(own)
                axes.hlines(y, 100 * row["low"], 100 * row["high"], color="#56B4E9", linewidth=1.2)
                text = "a run, 95 % over images" if number == place_of == 0 else ""
                axes.plot(100 * row["accuracy"], y, "o", color=COLOURS[0], markersize=3, label=text)
            group = spread.get(name)
            if group is not None and group["runs"] >= 3:
                y = number + 0.3
                axes.hlines(y, 100 * group["low"], 100 * group["high"], color=COLOURS[1], linewidth=1.6)
                axes.plot(100 * group["accuracy"], y, "D", color=COLOURS[1], markersize=4, label="mean, 95 % over runs")
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_yticks(range(len(names)), labels)
        axes.set_xlabel("test accuracy (%)")
        handles = {str(h.get_label()): h for h in axes.get_legend_handles_labels()[0]}
        axes.legend(handles.values(), handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
    return figure


def _labels(names: Sequence[str]) -> list[str]:
    """Settings without their sections where that tells the groups apart, too: backbone.depth=2 -> depth=2; in lines."""
    short = [re.sub(r"[\w.]+\.(\w+=)", r"\1", name) for name in names]
    told = short if len(set(short)) == len(set(names)) else names
    return ["\n".join(textwrap.wrap(name, 46)) or name for name in told]
