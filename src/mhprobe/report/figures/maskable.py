"""Heads that can go: likeness to a kept head (redundant?) against how much they write (inert?)."""

import math
from collections.abc import Sequence

from mhprobe.masking.redundant_or_inert import Likeness, MaskedHead
from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure, canvas, place

PHASES = {"before": "masked before the drop", "at": "at the drop", "after": "after it"}

CAPTION = (
    "Were the heads that could go redundant or inert? Up: likeness to the most similar kept head, from chance "
    "(dotted, 0: what the likest of as many heads is when images are permuted) to identity (1); filled: redundant, "
    "more than chance and than all but a twentieth of the heads that can not go. Across: how much the head writes; "
    "left of the dashed line inert. Compare the phases: if heads that can not go stand as high, likeness does not "
    "explain why the others can."
)


def draw(heads: Sequence[MaskedHead], similarity: str, inert: float) -> Figure:
    """A panel per curve and a point per head.

    Across: what the head writes into the residual stream, as a share of the median head (log scale); left of the
    dashed line it is inert. Up: how far its likeness to the most similar kept head stands up from chance (0, dotted)
    to identity (1), by the named similarity; filled where the head is redundant, over all similarities. The
    dotted line is 0 of the measure itself where it has no chance level.
    """
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    curves: dict[str, list[tuple[MaskedHead, Likeness]]] = {}
    for head in heads:
        like = head.likeness[similarity]
        if like is not None:
            curves.setdefault(head.curve, []).append((head, like))
    per_row = min(3, max(1, len(curves)))
    deep = math.ceil(len(curves) / per_row)
    beside = 4 if per_row == 3 else 2  # entries of the legend, which stands below
    side, left, bottom, gap, top = 1.9, 0.68, 0.68 + 0.17 * (4 - beside) / 2, 0.42, 0.3
    size = (max(3.5, left + per_row * (side + gap)), bottom + deep * (side + gap) - gap + top)
    shares = [max(head.write_share, 1e-3) for points in curves.values() for head, _ in points]
    known = any(like.null is not None for points in curves.values() for _, like in points)
    above = ", above chance" if known else ""
    top_of_all = min(1.03, 1.15 * max([0.4, *(like.standing for points in curves.values() for _, like in points)]))
    lowest, highest = 0.8 * min([*shares, inert]), 1.25 * max([*shares, 1.0])  # there may be no heads
    ticks = (1, 2, 5) if highest / lowest < 100 else (1,)  # more would run into each other
    with canvas(size) as figure:
        for number, (name, points) in enumerate(curves.items()):
            down, across = divmod(number, per_row)
            axes = place(figure, left + across * (side + gap), size[1] - top - side - down * (side + gap), side, side)
            for phase, style in reversed(list(zip(PHASES, zip(COLOURS, MARKERS, strict=True), strict=False))):
                there = [(head, like) for head, like in points if head.phase == phase]
                for redundant in (False, True):
                    some = [(head, like) for head, like in there if head.redundant == redundant]
                    axes.plot(
                        [max(head.write_share, 1e-3) for head, _ in some],
                        [like.standing for _, like in some],
                        style[1],
                        color=style[0],
                        markerfacecolor=style[0] if redundant else "none",
                        markersize=4,
                        alpha=0.8,
                        label=PHASES[phase] if redundant else None,
                    )
            axes.axvline(inert, color="0.4", linestyle="--", linewidth=0.8, zorder=0)
            axes.text(0.02, 0.98, "inert", transform=axes.transAxes, va="top", fontsize=6.5, color="0.4")
            axes.axhline(0, color="0.4", linestyle=":", linewidth=0.8, zorder=0)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=ticks))
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set(xlim=(lowest, highest), ylim=(-0.06, top_of_all))
            axes.set_title(name, pad=3)
            if number + per_row >= len(curves):
                axes.set_xlabel("write norm / median head")
            if across == 0:
                axes.set_ylabel(f"likeness to a kept head\n({similarity}{above})")
        if curves:
            _legend(figure, axes, beside)
    return figure


def _legend(figure: Figure, axes: Axes, beside: int) -> None:
    """The phases, and what a hollow mark is, below the panels."""
    handles, labels = axes.get_legend_handles_labels()
    hollow = axes.plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none")
    handles, labels = [*handles[::-1], *hollow], [*labels[::-1], "hollow: not redundant"]
    figure.legend(handles, labels, loc="lower center", ncols=beside, borderaxespad=0.3)
