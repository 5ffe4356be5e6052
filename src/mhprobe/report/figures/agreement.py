"""Agreement of measures on heads: rank correlation and top-k overlap of every two, as matrices."""

import torch
from torch import Tensor

from mhprobe.report.figures.style import Axes, Figure, canvas, place, readable
from mhprobe.stats.agreement import Agreement

CAPTION = (
    "Every two measures compared: how alike they rank all heads (left, Spearman's rho; unrelated rankings give "
    "about 0), and how many of their highest heads they share (right; the line on the colour bar is what random "
    "rankings share)."
)


def draw(found: Agreement, control: Agreement | None = None) -> Figure:
    """Spearman's rho on the left, overlap of the k best heads on the right; below them a control's, if there is one.

    Of each symmetric matrix the lower half is shown. The overlap of random rankings is marked on its colour bar.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    rows = [(found, "")] + ([(control, ", random initialisation")] if control is not None else [])
    count = len(found.names)
    side = max(2.1, 0.3 * count)
    longest = max(map(len, found.names))
    left, bottom, between = 0.2 + 0.065 * longest, 0.2 + 0.065 * longest, 0.45
    bar_wide = 1.05
    wide = left + 2 * (side + bar_wide)
    tall = bottom + len(rows) * side + (len(rows) - 1) * between + 0.3
    with canvas((wide, tall)) as figure:
        for row, (result, which) in enumerate(rows):
            y = bottom + (len(rows) - 1 - row) * (side + between)
            panels = (
                ("rank correlation" + which, result.spearman, "RdBu_r", Normalize(-1, 1), "Spearman's rho over heads"),
                (
                    f"top {result.k} heads" + which,
                    result.overlap,
                    "viridis",
                    Normalize(0, 1),
                    f"share in common{_chance(result)}",
                ),
            )
            for column, (title, matrix, colours, norm, label) in enumerate(panels):
                axes = place(figure, left + column * (side + bar_wide), y, side, side)
                lower = matrix.masked_fill(torch.ones_like(matrix).triu(1).bool(), torch.nan)
                cmap = colormaps[colours].with_extremes(bad="white")
                image = axes.imshow(lower.numpy(), cmap=cmap, norm=norm)
                _numbers(axes, lower)
                readable(axes)
                axes.set_title(title, loc="left", pad=4)
                last = row == len(rows) - 1
                axes.set_xticks(range(count), result.names if last else [], rotation=90)
                axes.set_yticks(range(count), result.names if column == 0 else [])
                axes.tick_params(length=0)
                axes.spines[:].set_visible(False)
                beside = place(figure, left + column * (side + bar_wide) + side + 0.1, y, 0.09, side)
                bar = figure.colorbar(image, cax=beside)
                bar.outline.set_visible(False)
                bar.set_label(label)
                chance = result.chance[result.chance.isfinite()]
                if column == 1 and len(chance):
                    bar.ax.axhline(chance.mean().item(), color="white", linewidth=1.6)
                    bar.ax.axhline(chance.mean().item(), color="#D55E00", linewidth=1.0)
    return figure


def _chance(found: Agreement) -> str:
    chance = found.chance[found.chance.isfinite()]
    return f" (line: chance {chance.mean():.2g})" if len(chance) else ""


def _numbers(axes: Axes, lower: Tensor) -> None:
    """Two digits in every cell; a dash where there is nothing to compare."""
    for i in range(len(lower)):
        for j in range(i + 1):
            value = lower[i, j].item()
            text = (
                "-"
                if value != value
                else f"{value:.2f}".replace("0.", ".", 1)
                if abs(value) < 0.995
                else f"{value:.0f}"
            )
            axes.text(j, i, text, ha="center", va="center", fontsize=5.5)
