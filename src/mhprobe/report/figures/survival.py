"""Which heads a pruning keeps: stacked bars by stage, block or function, one bar per run of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from mhprobe.report.figures.style import COLOURS, Axes, Figure, canvas, place
from mhprobe.stats.survival import LABELS, Survivors

# a function has its colour in every figure
LABEL_SHADES = dict(zip(LABELS, (*COLOURS[:6], "#F0E442", "#999999", "#DDDDDD"), strict=True))

CAPTION = (
    "Which heads pruning keeps, by stage, block or function; the last bar is the whole model. A pruning that took "
    "heads at random would keep the whole model's proportions."
)


def draw(rows: Sequence[Survivors]) -> Figure:
    """A panel per division (stage where there are several, block, label); bars by heads kept, and the whole model."""

    groups = {by: {row.group for row in rows if row.by == by} for by in dict.fromkeys(row.by for row in rows)}
    divisions = [by for by, names in groups.items() if by == "label" or len(names) > 1]  # one stage tells nothing
    bars = len({row.run for row in rows}) + 1
    wide, tall, left, gap, bottom, top = max(1.6, 0.3 * bars), 2.3, 0.55, 1.65, 0.5, 0.3
    with canvas((left + len(divisions) * (wide + gap), bottom + tall + top)) as figure:
        for number, by in enumerate(divisions):
            axes = place(figure, left + number * (wide + gap), bottom, wide, tall)
            _stack(axes, [row for row in rows if row.by == by], by)
    return figure


def _stack(axes: Axes, rows: Sequence[Survivors], by: str) -> None:
    from matplotlib import colormaps

    runs = list(dict.fromkeys(row.run for row in rows))
    groups = list(dict.fromkeys(row.group for row in rows))
    names = [str(next(row.heads for row in rows if row.run == run)) for run in runs]
    base = [0] * (len(runs) + 1)
    if by == "label":
        groups = [label for label in LABELS if label in groups]
    for number, group in enumerate(groups):
        # groups that have an order get shades that have one
        shade = LABEL_SHADES[group] if by == "label" else colormaps["viridis"](number / max(1, len(groups) - 1))
        of = [row for row in rows if row.group == group]
        heights = [next(row.kept for row in of if row.run == run) for run in runs] + [of[0].of]
        axes.bar(range(len(base)), heights, bottom=base, color=shade, width=0.8, label=group, edgecolor="white", lw=0.3)
        base = [b + h for b, h in zip(base, heights, strict=True)]
    axes.set_xticks(range(len(base)), [*names, "all"])
    axes.set_xlabel("heads kept")
    axes.set_ylabel("heads")
    axes.set_title(f"by {'function' if by == 'label' else by}", loc="left", pad=4)
    handles, texts = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], texts[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), borderaxespad=0.3,
                handlelength=1.0, ncols=1 + (len(groups) > 14))  # fmt: skip
