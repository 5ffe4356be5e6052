"""Attention to each kind of key over depth, in per cent: a panel per kind, a dot per head, and even attention."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, place, ticks

CAPTION = (
    "Share of the patches' attention that goes to each kind of key, block by block: a dot per head, the line their "
    "mean. Dashed is even attention, which is what a head gives that does not tell keys apart."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Panels for every column that has a "uniform_" one and is not empty; the y axes are their own."""
    kinds = [n.removeprefix("uniform_") for n in columns if n.startswith("uniform_")]
    kinds = [kind for kind in kinds if columns[kind].isfinite().any() and columns[f"uniform_{kind}"].sum() > 0]
    blocks = [site.block for site in layout.sites]
    per_row = min(4, len(kinds))
    deep = -(-len(kinds) // per_row)
    wide, tall, gap, down, left, bottom = 1.35, 0.95, 0.42, 0.42, 0.6, 0.75
    top = bottom + deep * tall + (deep - 1) * down + 0.25
    with canvas((max(3.2, left + per_row * (wide + gap)), top)) as figure:
        for number, kind in enumerate(kinds):
            row, column = divmod(number, per_row)
            axes = place(figure, left + column * (wide + gap), top - 0.25 - tall - row * (tall + down), wide, tall)
            share, even = 100 * columns[kind].double(), 100 * columns[f"uniform_{kind}"].double()
            spans = [layout.span(site) for site in range(len(layout.sites))]
            (dots,) = axes.plot(
                [site.block for _, _, site in layout], share.tolist(), ".", color=COLOURS[0], markersize=3, alpha=0.6
            )
            (mean,) = axes.plot(blocks, [share[span].mean().item() for span in spans], color=COLOURS[0])
            (level,) = axes.plot(blocks, [even[span].mean().item() for span in spans], "--", color=COLOURS[1])
            axes.set_ylim(bottom=0)
            axes.set_xticks([blocks[i] for i in ticks(len(blocks), wide / len(blocks))])
            axes.set_title(kind.replace("cls", "class token").replace("_", " "), pad=3)
            axes.set_xlabel("block" if number + per_row >= len(kinds) else "")
            axes.set_ylabel("attention (%)" if column == 0 else "")
        lines = [dots, mean, level]
        figure.legend(lines, ["a head", "mean", "even attention"], loc="lower center", ncols=3, borderaxespad=0.3)
    return figure
