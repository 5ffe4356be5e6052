"""Functions of heads, as a grid of layers by heads: a mark per function that a head has."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
    from matplotlib.patches import Patch, Rectangle

    heads, deep = max(site.num_heads for site in layout.sites), len(layout.sites)
    wide_cell = max(0.26, min(0.5, 6.0 / heads))
    tall_cell, left = 0.3, 0.55
    tall = max(tall_cell * deep, (0.32 if rules else 0.19) * len(functions))
    with canvas((left + wide_cell * heads + (3.0 if rules else 1.75), tall + 0.65)) as figure:
        axes = place(figure, left, 0.45, wide_cell * heads, tall)
        looks = {name: _look(number) for number, name in enumerate(functions)}
        for flat, (row, head, _) in enumerate(layout):
            own = [name for name, has_A in functions.items() if has_A[flat]]
            axes.add_patch(Rectangle((head - 0.5, row - 0.5), 1, 1, facecolor="0.93"))
            for part, name in enumerate(own):  # side by side where a head has several
                corner = (head - 0.5 + part / len(own), row - 0.5)
                axes.add_patch(Rectangle(corner, 1 / len(own), 1, linewidth=0, **looks[name]))
            axes.add_patch(Rectangle((head - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.5))
        handles = [
            Patch(label=f"{name} ({int(has_A.sum())})" + (f"\n  {rules[name]}" if name in rules else ""), **looks[name])
            for name, has_A in functions.items()
        ]
        axes.set(xlim=(-0.5, heads - 0.5), ylim=(deep - 0.5, -0.5), xticks=ticks(heads, wide_cell))
        axes.set_yticks(range(deep), [str(site.block) for site in layout.sites])
        axes.set(xlabel="head", ylabel="block")
        axes.spines[:].set_visible(False)
        axes.legend(
            handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0, title="function (heads)"
        )
    return figure


def _look(number: int) -> dict[str, Any]:
    """The colour of a function's cells; more functions than colours are hatched."""
    shade, _ = colour(number)
    if number < len(COLOURS):
        return {"facecolor": shade, "edgecolor": shade}
    return {"facecolor": "white", "edgecolor": shade, "hatch": "////"}
