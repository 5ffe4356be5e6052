"""Canonical correlations between blocks against their index: a panel per stage, and one across stages."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.coefficients import Pairs, draw_pairs, pair_lines
from mhprobe.report.figures.style import NAMELESS, Axes, Figure, Names, canvas, place

CAPTION = (
    "How many directions two blocks share, and how well: a line per pair of blocks, light for neighbours and dark for "
    "blocks far apart. Dotted is chance, of the same pair. Blocks add to one stream, so neighbours are alike anyway."
)


def draw(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    pairs: Pairs | None = None,
) -> Figure:
    """From "rho" and "null_rho" (S, S, R).

    pairs: of layers by their numbers from 0, each with a line of its own in one panel instead, also across stages.
    UserError for one that is not there.
    """
    if pairs:
        return draw_pairs("block_coefficients", pairs, [f"block {site.block}" for site in layout.sites], columns)
    stages: dict[str, list[int]] = {}
    for number, site in enumerate(layout.sites):
        stages.setdefault(f"stage {site.stage}" if layout.num_stages > 1 else "blocks", []).append(number)
    panels = dict(stages)
    if len(stages) > 1:
        panels["last blocks of stages"] = [numbers[-1] for numbers in stages.values()]
    panels = {name: numbers for name, numbers in panels.items() if len(numbers) > 1}
    furthest = max((len(numbers) - 1 for numbers in panels.values()), default=1)
    wide, tall, gap, left = 1.7, 1.5, 0.25, 0.55
    with canvas((max(3.0, left + len(panels) * (wide + gap)) + 1.1, tall + 0.85)) as figure:
        for column, (name, numbers) in enumerate(panels.items()):
            axes = place(figure, left + column * (wide + gap), 0.5, wide, tall)
            _panel(axes, numbers, columns, furthest)
            axes.set_title(name, pad=3)
            axes.set_ylim(0, 1.02)
            axes.set_yticks([0, 0.5, 1], None if column == 0 else [""] * 3)
            axes.set(xlabel="coefficient", ylabel="correlation" if column == 0 else "")
        if panels:
            for steps in sorted({1, 2, furthest}) if furthest > 1 else [1]:
                axes.plot([], [], color=_shade(steps, furthest), label="neighbours" if steps == 1 else f"{steps} apart")
            axes.plot([], [], ":", color="0.4", label="chance")
            axes.legend(loc="center left", bbox_to_anchor=(1.05, 0.5), borderaxespad=0)
    return figure


def _panel(axes: Axes, numbers: list[int], columns: Mapping[str, Tensor], furthest: int) -> None:
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers[i + 1 :], i + 1):
            pair_lines(axes, columns, (a, b), _shade(j - i, furthest), widths=(0.9, 0.7))


def _shade(steps: int, furthest: int) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.3 + 0.7 * (steps - 1) / max(1, furthest - 1))
