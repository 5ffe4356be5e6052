"""The class of every head, and the gates under a price and under a reward that decide it."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import (
    NAMELESS,
    NOT_COMPARED,
    Figure,
    Names,
    canvas,
    head_matrix,
    inches,
    matrix_height,
    place,
)

# necessary, irrelevant, interfering, unsettled, closed
SHADES = ("#0072B2", NOT_COMPARED, "#D55E00", "#F0E442", "#333333")

CAPTION = (
    "Left, the class of every head; right, each head by its gate under a price and under a reward. Heads that are "
    "open under both are needed, closed under both harmful, in between free to go. A gate stays near its start "
    "where the loss does not care."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Left: a row per layer and a column per head, coloured by class. Right: every head by its two gates.

    columns: role (A,), an index into the names of "role"; plus, minus (A,), the gates under +L1 and -L1; threshold (),
    above it a gate is open.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    role, plus, minus = columns["role"], columns["plus"], columns["minus"]
    roles, threshold = names["role"], columns["threshold"].item()
    widest = max(site.num_heads for site in layout.sites)
    cell = min(0.3, 3.6 / widest)
    left, top, side = 0.6, 0.3, 2.0
    grid = matrix_height(layout, cell)
    tall = max(grid, side)
    beside = tall - grid > 0.7  # a short grid has the legend below it, beside the other panel
    bottom = 0.5 if beside else 0.85
    scatter_at = left + max(cell * widest, 2.4) + 0.7
    with canvas((scatter_at + side + 0.2, bottom + tall + top)) as figure:
        head_matrix(
            figure, layout, role, left, bottom + tall, cell,
            cmap=ListedColormap(SHADES), vmin=-0.5, vmax=len(SHADES) - 0.5,
        )  # fmt: skip
        counts = [int((role == i).sum()) for i in range(len(roles))]
        patches = [
            Patch(color=SHADES[i], label=f"{name}: {counts[i]}") for i, name in enumerate(roles) if counts[i] or i < 3
        ]
        if beside:
            wide, high = inches(figure)
            at = (left / wide, (bottom + tall - grid - 0.5) / high)
            figure.legend(handles=patches, loc="upper left", bbox_to_anchor=at, borderaxespad=0)
        else:
            figure.legend(handles=patches, loc="lower left", ncols=len(patches), borderaxespad=0.4, columnspacing=1.0)
        axes = place(figure, scatter_at, bottom + tall - side, side, side)
        for i in range(len(roles)):
            of = role == i
            axes.scatter(
                plus[of].tolist(), minus[of].tolist(), s=12, color=SHADES[i], edgecolor="0.3", linewidth=0.4,
                clip_on=False, zorder=3,
            )  # fmt: skip
        axes.axhline(threshold, color="0.6", lw=0.6, ls=":")
        axes.axvline(threshold, color="0.6", lw=0.6, ls=":")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="gate when open heads cost (+L1)")
        axes.set_ylabel("gate when they are rewarded (−L1)")  # noqa: RUF001
    return figure
