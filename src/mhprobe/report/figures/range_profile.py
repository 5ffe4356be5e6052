"""Mass of attention around the argmax key: one panel per layer, one curve per head."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, inches, panel_grid, place, site_title

CAPTION = (
    "The share of attention within a radius of the query, a line per head. The dashed line is even attention: "
    "heads above it look near, heads below it far."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Share of the mass within a radius, over the radius in input pixels; dashed for even attention."""
    inside, even = columns["mass"].double().cumsum(1), columns["uniform_mass"].double().cumsum(1)
    count = len(layout.sites)
    deep, per_row = panel_grid(count)
    wide, tall, gap, left, bottom = 1.25, 1.15, 0.4, 0.6, 0.5
    # at the top a line for the legend
    with canvas((max(4.0, left + per_row * (wide + gap)), bottom + deep * tall + (deep - 1) * 0.62 + 0.55)) as figure:
        for number in range(count):
            row, column = divmod(number, per_row)
            y = bottom + (deep - 1 - row) * (tall + 0.62)
            axes = place(figure, left + column * (wide + gap), y, wide, tall)
            span = layout.span(number)
            known = columns["distances"][span][0].isfinite()
            radius = columns["distances"][span][0][known].tolist()
            for head in inside[span]:
                axes.plot(radius, head[known].tolist(), color=COLOURS[0], linewidth=0.8, alpha=0.7)
            axes.plot(radius, even[span].mean(0)[known].tolist(), "--", color=COLOURS[1], linewidth=1)
            for share in (0.5, 0.9):
                axes.axhline(share, color="0.6", linewidth=0.5, linestyle=":", zorder=0)
            axes.set(ylim=(0, 1.02), xlim=(0, max(radius[-1], 1e-9)))
            axes.set_yticks([0, 0.5, 0.9], ["0", "0.5", "0.9"] if column == 0 else [])
            axes.set_title(site_title(layout, number), pad=3)
            if number + per_row >= count:
                axes.set_xlabel("radius (input pixels)")
            if column == 0:
                axes.set_ylabel("mass within")
            if number == 0:
                head_line, even_line = axes.get_lines()[0], axes.get_lines()[inside[span].shape[0]]
        figure.legend(
            [head_line, even_line], ["a head, around its argmax key", "even attention"],
            loc="upper left", bbox_to_anchor=(left / inches(figure)[0], 1), ncols=2, borderaxespad=0.3,
        )  # fmt: skip
    return figure
