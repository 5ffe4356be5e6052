"""Functions of heads, as a grid of layers by heads: a mark per function that a head has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, Figure, canvas, colour, place, ticks

NO_RULES: Mapping[str, str] = MappingProxyType({})
CAPTION = (
    "What each head does, by stated thresholds: a mark per function, and none where no rule holds. A head may have "
    "several. A label says what a head attends to, not that the network needs it."
)


def draw(layout: HeadLayout, functions: Mapping[str, Tensor], rules: Mapping[str, str] = NO_RULES) -> Figure:
    """Return the figure.

    functions: by name (A,) bool. Those that no head has are named in the legend with 0. rules: when each holds.
    """
    heads, deep = max(site.num_heads for site in layout.sites), len(layout.sites)
    wide_cell = max(0.26, min(0.5, 6.0 / heads))
    tall_cell, left = 0.3, 0.55
    tall = max(tall_cell * deep, (0.32 if rules else 0.19) * len(functions))
    with canvas((left + wide_cell * heads + (3.0 if rules else 1.75), tall + 0.65)) as figure:
        axes = place(figure, left, 0.45, wide_cell * heads, tall)
        for row, site in enumerate(layout.sites):
            axes.hlines([row - 0.5, row + 0.5], -0.5, site.num_heads - 0.5, color="0.85", linewidth=0.6)
            axes.vlines([h - 0.5 for h in range(site.num_heads + 1)], row - 0.5, row + 0.5, color="0.85", linewidth=0.6)
        for number, (name, has_A) in enumerate(functions.items()):
            # more functions than colours: the eighth is hollow
            shade, marker = colour(number)
            face = "none" if number >= len(COLOURS) else shade
            across, down = divmod(number, 2)[::-1] if len(functions) <= 4 else (number % 3, number // 3)
            columns = 2 if len(functions) <= 4 else 3
            rows = -(-len(functions) // columns)
            places = [
                (head + (across + 0.5) / columns - 0.5, site + (down + 0.5) / rows - 0.5)
                for flat, (site, head, _) in enumerate(layout)
                if has_A[flat]
            ]
            xs, ys = [x for x, _ in places], [y for _, y in places]
            label = f"{name} ({int(has_A.sum())})" + (f"\n  {rules[name]}" if name in rules else "")
            axes.plot(xs, ys, marker, color=shade, markerfacecolor=face, markersize=4, linestyle="", label=label)
        axes.set_xlim(-0.5, heads - 0.5)
        axes.set_ylim(deep - 0.5, -0.5)
        axes.set_xticks(ticks(heads, wide_cell))
        axes.set_yticks(range(deep), [str(site.block) for site in layout.sites])
        axes.set_xlabel("head")
        axes.set_ylabel("block")
        axes.spines[:].set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0, title="function (heads)")
    return figure
