"""Heads as points whose distances resemble those between them, coloured by block."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    COLOURS,
    MARKERS,
    NAMELESS,
    Figure,
    Names,
    canvas,
    colour_bar,
    inches,
    panel_grid,
    place,
    site_title,
)

CAPTION = (
    "Heads as points: near points are alike. Only distances count, axes have no meaning. Distances are squeezed "
    "into a plane, so look up a striking pair in the table. Clusters are found in noise too."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One panel of all heads where layers were compared, coloured by block; otherwise one per layer, on one scale.

    Markers are clusters. In panels of one layer, numbers are heads.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    groups = _groups(layout, columns["value"])
    together = len(groups) < len(layout.sites)
    points, cluster = columns["embedding"].double(), columns["cluster"].long()
    reach = 1.15 * max(points.abs().max().item(), 1e-6)
    side = 3.4 if len(groups) == 1 else 1.5
    deep, per_row = panel_grid(len(groups))
    left, bottom, gap = 0.65, 0.5, 0.3
    wide, tall = per_row * side + (per_row - 1) * gap, deep * side + (deep - 1) * gap
    with canvas((max(5.0, left + wide + (0.9 if together else 0.15)), bottom + tall + 0.3)) as figure:  # room for words
        blocks = [site.block for site in layout.sites]
        cmap, norm = colormaps["viridis"], Normalize(min(blocks), max(max(blocks), min(blocks) + 1))
        for number, sites in enumerate(groups):
            row, column = divmod(number, per_row)
            axes = place(figure, left + column * (side + gap), bottom + (deep - 1 - row) * (side + gap), side, side)
            for s in sites:
                for head, flat in enumerate(range(*layout.span(s).indices(layout.num_heads))):
                    x, y = points[flat].tolist()
                    kind = int(cluster[flat])
                    shade = cmap(norm(layout.sites[s].block)) if together else COLOURS[kind % len(COLOURS)]
                    axes.plot(x, y, MARKERS[kind % len(MARKERS)], color=shade, ms=5 if together else 4, mew=0)
                    if not together:
                        axes.annotate(str(head), (x, y), xytext=(2.5, 2.5), textcoords="offset points", fontsize=6)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes.locator_params(nbins=4)
            if len(groups) > 1:
                axes.set_title(site_title(layout, sites[0]) if len(sites) == 1 else f"stage {number}", pad=3)
            if number + per_row < len(groups):
                axes.set_xticklabels([])
            if column:
                axes.set_yticklabels([])
        if together:
            colour_bar(
                figure, ScalarMappable(norm, cmap), left + wide + 0.15, bottom, side, "block (markers: clusters)"
            )
        figure.text(
            0.5, 0.06 / inches(figure)[1],
            f"embedding of {label}" + ("" if together else " (colours and markers: clusters, numbers: heads)"),
            ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
    return figure


def _groups(layout: HeadLayout, value: Tensor) -> list[list[int]]:
    """Sites whose heads were compared with each other."""
    groups: list[list[int]] = []
    for s in range(len(layout.sites)):
        first = groups[-1][0] if groups else s
        if groups and not value[layout.offsets[first], layout.offsets[s]].isnan():
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups
