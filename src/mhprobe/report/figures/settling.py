"""When does importance settle? Accuracy after one-shot removal at each epoch, and how the scores' order changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhprobe.report.figures.style import Axes, Figure, canvas, inches, place, scale, ticks
from mhprobe.stats.significance import wilson

CAPTION = (
    "Accuracy after removing the lowest heads at once, epoch by epoch; what is left of it above chance; and how "
    "alike the epochs rank the heads (1 alike, 0 by chance). Where rows stop changing, importance has settled. Grey: "
    "the whole model cannot be told from guessing (95 %), so it has nothing to lose."
)


def draw(rows: Sequence[Mapping[str, Any]], agreement: Sequence[Mapping[str, Any]], images: int) -> Figure:
    """Three panels: accuracy, what is left of it above chance, and how the scores of two epochs agree.

    Accuracy has a line per share of heads removed; black is none. The second panel is relative to the same epoch's
    accuracy with all heads. The third is the rank correlation of the scores of every two epochs.

    rows: epoch, share, accuracy, chance. agreement: epoch_a, epoch_b, spearman. As studies/settling.py gives them.
    images: that accuracies are of; an epoch whose whole model is not sure to be above chance is grey.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    epochs = sorted({row["epoch"] for row in rows})
    shares = sorted({row["share"] for row in rows})
    accuracy = {(row["epoch"], row["share"]): row["accuracy"] for row in rows}
    chance = rows[0]["chance"]
    side, left, bottom, gap = 2.1, 0.55, 0.5, 1.35
    with canvas((left + 3 * side + 2 * gap + 0.85, bottom + side + 0.3)) as figure:
        axes = place(figure, left, bottom, side, side)
        shade = colormaps["viridis_r"]
        for share in shares:
            colour = "black" if share == 0 else shade(share)
            values = [100 * accuracy[epoch, share] for epoch in epochs]
            axes.plot(epochs, values, color=colour, marker=".", markersize=4, linewidth=1, label=f"{100 * share:.0f} %")
        axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, zorder=0)
        axes.set_ylim(-2, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="epoch (dotted: chance)", ylabel="validation accuracy (%)")
        axes.legend(title="removed", title_fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5)

        removed = [share for share in shares if share > 0]
        left_over = torch.tensor(
            [[(accuracy[e, s] - chance) / max(accuracy[e, 0.0] - chance, 1e-9) for e in epochs] for s in removed]
        ).clamp(0, 1)
        whole = torch.tensor([accuracy[e, 0.0] for e in epochs], dtype=torch.float64)
        at_chance = wilson((whole * images).round(), torch.tensor(images))[0] <= chance
        left_over[:, at_chance] = torch.nan  # it has nothing to lose
        axes = place(figure, left + side + gap, bottom, side, side)
        grey = "\n(grey: whole model at chance)" if at_chance.any() else ""
        _matrix(figure, axes, left_over, "accuracy kept, above chance" + grey, 0.0)
        axes.set_xticks(*_names(epochs, side))
        axes.set_yticks(range(len(removed)), [f"{100 * share:.0f} %" for share in removed])
        axes.set(xlabel="epoch", ylabel="heads removed")

        place_of = {epoch: number for number, epoch in enumerate(epochs)}
        alike = torch.eye(len(epochs)).fill_diagonal_(torch.nan)
        alike[alike == 0] = torch.nan
        for row in agreement:
            a, b = place_of[row["epoch_a"]], place_of[row["epoch_b"]]
            alike[a, b] = alike[b, a] = row["spearman"]
        axes = place(figure, left + 2 * (side + gap), bottom, side, side)
        _matrix(figure, axes, alike, "rank correlation of the heads' scores", None)
        axes.set_xticks(*_names(epochs, side))
        axes.set_yticks(*_names(epochs, side))
        axes.set(xlabel="epoch", ylabel="epoch")
    return figure


def _matrix(figure: Figure, axes: Axes, values: torch.Tensor, label: str, low: float | None) -> None:
    cmap, norm = scale(values if low is None else torch.tensor([low, 1.0]))
    image = axes.imshow(values.numpy(), cmap=cmap, norm=norm, aspect="auto", origin="lower")
    axes.spines[:].set_visible(False)
    wide, _ = inches(figure)
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.08 / wide, box.y0, 0.1 / wide, box.height)))
    bar.outline.set_visible(False)
    bar.set_label(label)


def _names(epochs: Sequence[int], side: float) -> tuple[list[int], list[str]]:
    at = ticks(len(epochs), side / len(epochs))
    return at, [str(epochs[i]) for i in at]
