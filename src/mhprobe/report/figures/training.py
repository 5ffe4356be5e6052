"""Figures along training and around its end: values of heads, settling of importance, the loss over weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, Axes, Figure
from mhprobe.stats.significance import wilson


@captioned(
    "Every head's value during training, coloured by block; thick lines are block means. The first "
    "point is "
    "before training: what has not moved from there was not learned."
)
def history(layout: HeadLayout, steps: Sequence[int], values: Tensor, label: str) -> Figure:
    """Values of heads during training. steps: P optimizer steps. values: (P, A)."""
    shades = style.block_shades(layout)
    with style.panel((3.6, 2.35), (0.65, 0.5, 0.95, 0.15)) as (figure, axes):
        for number, site in enumerate(layout.sites):
            heads = values[:, layout.span(number)].double()
            shade = shades.to_rgba(site.block)
            axes.plot(
                steps,
                heads.numpy(),
                color=shade,
                lw=0.5,
                alpha=0.5,
                marker="." if len(steps) == 1 else "",
            )
            mean = heads.nanmean(1)
            if bool(mean.isfinite().any()):
                axes.plot(steps, mean.numpy(), color=shade, linewidth=1.8)
        if bool((values < 0).any()) and bool((values > 0).any()):
            axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
        style.whole_ticks(axes.xaxis)
        axes.set_xlabel("optimizer step (thick: mean of the block)")
        axes.set_ylabel(label, fontsize=8 if len(label) < 45 else 6.5)
        style.block_bar(figure, shades, 4.4, 0.5, 2.35)
    return figure


@captioned(
    "Accuracy after removing the lowest heads at once, epoch by epoch; what is left of it above "
    "chance; and how "
    "alike the epochs rank the heads (1 alike, 0 by chance). Where rows stop changing, importance "
    "has settled. Grey: "
    "the whole model cannot be told from guessing (95 %), so it has nothing to lose."
)
def settling(
    rows: Sequence[Mapping[str, Any]], agreement: Sequence[Mapping[str, Any]], images: int
) -> Figure:
    """Three panels.

    rows: epoch, share, accuracy, chance. agreement: epoch_a, epoch_b, spearman. images: number.
    """
    course = _Course.of(rows)
    epochs = course.epochs
    size = (2.1, 2.1)
    with style.grid(3, size, (1.35, 0), (0.55, 0.5, 0.85, 0.3)) as (figure, places):
        lines, kept, alike = (axes for axes, _, _ in places)
        _lines_of_shares(lines, course)
        _accuracy_kept(kept, course, images)
        _matrix(alike, _spearman(agreement, epochs), "rank correlation of the heads' scores")
        shown = style.ticks(len(epochs), size[0] / len(epochs))
        for axis in (kept.xaxis, alike.xaxis, alike.yaxis):
            axis.set_ticks(shown, [str(epochs[i]) for i in shown])
            axis.set_label_text("epoch")
    return figure


class _Course(NamedTuple):
    """Accuracy after the removal of shares of the heads, over a training.

    accuracy: by (epoch, share); a share of 0 is the whole model.
    """

    epochs: list[int]
    shares: list[float]
    accuracy: dict[tuple[int, float], float]
    chance: float

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Gather the rows of ``settling``."""
        return cls(
            epochs=sorted({row["epoch"] for row in rows}),
            shares=sorted({row["share"] for row in rows}),
            accuracy={(row["epoch"], row["share"]): row["accuracy"] for row in rows},
            chance=rows[0]["chance"],
        )

    def without(self, share: float) -> list[float]:
        """Return the accuracy at each epoch, with a share of the heads removed."""
        return [self.accuracy[epoch, share] for epoch in self.epochs]


def _lines_of_shares(axes: Axes, course: _Course) -> None:
    """Draw accuracy over epochs, a line per share of the heads that is removed."""
    for share in course.shares:
        axes.plot(
            course.epochs,
            [100 * accuracy for accuracy in course.without(share)],
            color="black" if share == 0 else style.shades("viridis_r")(share),
            marker=".",
            ms=4,
            linewidth=1,
            label=f"{100 * share:.0f} %",
        )
    style.level(axes, 100 * course.chance, dashes=":", zorder=0)
    style.whole_ticks(axes.xaxis)
    axes.set(ylim=(-2, 102), xlabel="epoch (dotted: chance)", ylabel="validation accuracy (%)")
    style.legend_beside(
        axes, 1.0, borderaxespad=0.5, title="removed", title_fontsize=7, fontsize=6.5
    )


def _accuracy_kept(axes: Axes, course: _Course, images: int) -> None:
    """Draw the share of the accuracy above chance that is left, a row per share of the heads removed."""
    removed = [share for share in course.shares if share > 0]
    whole = torch.tensor(course.without(0.0), dtype=torch.float64)
    less = torch.tensor([course.without(share) for share in removed])
    chance = course.chance
    left_over = ((less - chance) / (whole - chance).clamp(min=1e-9)).clamp(0, 1)
    at_chance = _at_chance(whole, images, chance)
    left_over[:, at_chance] = torch.nan
    grey = "\n(grey: whole model at chance)" if at_chance.any() else ""
    _matrix(axes, left_over, "accuracy kept, above chance" + grey, of=torch.tensor([0.0, 1.0]))
    axes.set_yticks(range(len(removed)), [f"{100 * share:.0f} %" for share in removed])
    axes.set_ylabel("heads removed")


def _at_chance(accuracy: Tensor, images: int, chance: float) -> Tensor:
    """(E,) bool: accuracies on so many images that are not told from chance (95 %)."""
    return wilson((accuracy.double() * images).round(), torch.tensor(images))[0] <= chance


def _spearman(rows: Sequence[Mapping[str, Any]], epochs: Sequence[Any]) -> Tensor:
    """(E, E) rank correlations of the heads' scores between epochs; NaN where there is no row."""
    spearman = torch.full((len(epochs), len(epochs)), torch.nan)
    for row in rows:
        a = epochs.index(row["epoch_a"])
        b = epochs.index(row["epoch_b"])
        spearman[a, b] = spearman[b, a] = row["spearman"]
    return spearman


def _matrix(axes: Axes, values: Tensor, label: str, of: Tensor | None = None) -> None:
    """Draw a matrix, its first row lowest, with a colour bar.

    of: the range of colours, in place of the values.
    """
    cmap, norm = style.scale(values if of is None else of)
    image = style.picture(axes, values, cmap=cmap, norm=norm, origin="lower")
    axes.spines[:].set_visible(False)
    style.bar_beside(axes, image, label, 0.08)


@captioned(
    "The loss around the trained weights (cross) along two random directions, in norms of the "
    "filters; a panel per "
    "draw of the directions. A wide, round bowl is flat; where panels differ, two directions out "
    "of very many decide. "
    "Colours are of the logarithm of the loss."
)
def landscape(places: Sequence[float], losses: Sequence[Tensor]) -> Figure:
    """A panel per draw.

    places: S steps along each direction. losses: (S, S) of each draw, the first direction down.
    """
    every = torch.stack(list(losses)).clamp(min=1e-6)
    every = torch.where(every.isfinite(), every, every[every.isfinite()].max())
    norm: Any = LogNorm(every.min().item(), max(every.max().item(), 1.01 * every.min().item()))
    levels = torch.logspace(math.log10(norm.vmin), math.log10(norm.vmax), 13).tolist()
    size, gap, edges = (2.1, 2.1), (0.4, 0), (0.6, 0.5, 0.95, 0.3)
    with style.grid(len(losses), size, gap, edges, per_row=len(losses)) as (figure, panels):
        for number, ((axes, first, _), values) in enumerate(zip(panels, every, strict=True), 1):
            look: Any = {"cmap": "viridis", "norm": norm, "shading": "gouraud", "rasterized": True}
            axes.pcolormesh(places, places, values.T.numpy(), **look)
            axes.contour(
                places, places, values.T.numpy(), levels=levels, colors="white", linewidths=0.5
            )
            axes.plot(0, 0, "+", color=COLOURS[1], markersize=8, markeredgewidth=1.4)
            ticks = [places[0], 0, places[-1]]
            axes.set(
                xticks=ticks,
                yticks=ticks,
                xlabel="first direction",
                ylabel="second direction" if first else "",
            )
            axes.tick_params(labelleft=first)
            axes.set_title(f"draw {number}", loc="left", pad=3)
        bar = style.bar_beside(axes, ScalarMappable(norm, "viridis"), "mean loss (nats)")
        style.log_ticks(bar.ax.yaxis, written="{x:.4g}")
        bar.ax.tick_params(which="both", labelsize=6.5)
    return figure


@captioned(
    "How sharp the loss is along its sharpest direction: the largest eigenvalue of its Hessian, "
    "over all weights and "
    "over those of each block. Larger is sharper; negative ones mean that the loss is not at a "
    "minimum there."
)
def sharpness(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Eigenvalues of the loss's Hessian, a row per part of the network.

    rows: part, rank, eigenvalue.
    """
    parts = list(dict.fromkeys(row["part"] for row in rows))
    edges = (0.4 + 0.07 * max(map(len, parts)), 0.5, 0.2, 0.15)
    with style.panel((2.9, 0.2 * len(parts) + 0.2), edges) as (figure, axes):
        for row in rows:
            y, first = parts.index(row["part"]), row["rank"] == 1
            axes.plot(
                row["eigenvalue"],
                y,
                "o",
                color=COLOURS[0 if first else 4],
                markersize=5 if first else 3,
            )
        axes.axvline(0, color="0.4", linestyle="--", linewidth=0.8)
        style.name_rows(axes, parts)
        axes.set_xlabel("largest eigenvalues of the Hessian (nats)")
    return figure
