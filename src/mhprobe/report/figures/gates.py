"""Figures of learned gates: their distribution, their way there, and the classes of heads that they decide."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, NAMELESS, NOT_COMPARED, Axes, Figure, Names

BINS = 20
# necessary, irrelevant, interfering, unsettled, closed
SHADES = ("#0072B2", NOT_COMPARED, "#D55E00", "#F0E442", "#333333")


@captioned(
    "How likely a hard-concrete gate is exactly 0, exactly 1 (points at the ends) or in a bin "
    "between, for gates of "
    "different log alpha; beside it the learned gates (bars), against what a draw of them would "
    "give in training "
    "(line). Gates that have decided are at the ends; the start of training has all of them at 1."
)
def gate_density(
    shares: Mapping[str, Tensor], learned: tuple[Tensor, Tensor] | None = None
) -> Figure:
    """Distribution of hard-concrete gates, and the learned gates (Voita et al. 2019, Figure 6).

    shares: by name (BINS + 2,), P(gate = 0), of each bin, P(gate = 1). learned: (A,) gates, and
    their shares.
    """
    count = bool(shares) + (learned is not None)
    with style.grid(count, (2.6, 2.05), (0.75, 0), (0.6, 0.5, 0.2, 0.35)) as (figure, places):
        if shares:
            axes = places[0].axes
            for number, (name, share) in enumerate(shares.items()):
                _stairs(axes, share, *style.colour(number), name)
            axes.set_ylabel(f"probability (bins of 1/{BINS})")
            axes.set_title("the distribution", loc="left")
        if learned is not None:
            gates, expected = learned
            axes = places[-1].axes
            at = [-0.04, *((k + 0.5) / BINS for k in range(BINS)), 1.04]
            axes.bar(
                at,
                histogram(gates).tolist(),
                width=0.8 / BINS,
                color="0.75",
                label=f"{len(gates)} learned gates",
            )
            _stairs(axes, expected, *style.colour(0), "a draw of them in training")
            axes.set_ylabel("share of the heads")
            axes.set_title("the learned gates", loc="left")
        for axes, _, _ in places:
            axes.legend(loc="upper center")
    return figure


def histogram(gates: Tensor) -> Tensor:
    """(A,) gates in [0, 1] -> (BINS + 2,) float64 shares of exactly 0, of each bin, of exactly 1."""
    inner = gates[(gates > 0) & (gates < 1)].double()
    ends = torch.stack([gates <= 0, gates >= 1]).double().sum(1, keepdim=True)
    return torch.cat([ends[0], torch.histc(inner, BINS, 0, 1), ends[1]]) / len(gates)


def _stairs(axes: Axes, share: Tensor, shade: str, marker: str, name: str) -> None:
    values = share.tolist()
    axes.stairs(
        values[1:-1], [k / BINS for k in range(BINS + 1)], color=shade, baseline=None, label=name
    )
    axes.plot([-0.04, 1.04], [values[0], values[-1]], marker, color=shade, markersize=4)
    top = max(axes.get_ylim()[1] / 1.35 if axes.lines[:-1] else 0, *values)
    axes.set(xlim=(-0.09, 1.09), ylim=(0, 1.35 * top), xlabel="gate (points: exactly 0, exactly 1)")


@captioned(
    "How open every gate was while it was learned, input at the top; below, how many are open. "
    "Read the end for "
    "the decision, and the way there for how sure it was. A gate that nothing moves stays at its "
    "start."
)
def gate_history(
    layout: HeadLayout, steps: Sequence[int], amounts: Tensor, threshold: float
) -> Figure:
    """A row per head.

    steps: K optimizer steps. amounts: (K, A) P(open), or |gate|. threshold: above it one is open.
    """
    heads = layout.num_heads
    row = max(0.035, min(0.11, 4.5 / heads))  # inches
    left, wide, low, between, bottom, top = 0.75, 4.2, 1.4, 0.2, 0.45, 0.15
    tall = max(row * heads, 1.4)  # the colour bar's label needs so much
    edges = _edges(steps)
    with style.canvas((left + wide + 0.95, bottom + low + between + tall + top)) as figure:
        most = max(1.0, float(amounts.max()))
        top_at, bar_tall = bottom + low + between + tall, min(tall, 2.0)
        axes = style.axes_at(figure, left, top_at - row * heads, wide, row * heads)
        image = axes.pcolormesh(
            edges, range(heads + 1), amounts.T.numpy(), vmin=0, vmax=most, rasterized=True
        )
        axes.hlines(layout.offsets[1:-1], edges[0], edges[-1], color="white", linewidth=3)
        names = [
            name * (row * of.num_heads > 0.1)
            for name, of in zip(layout.site_names, layout.sites, strict=True)
        ]
        axes.set(
            xticks=[],
            ylim=(heads, 0),
            yticks=[at + 0.5 for at in style.middles(layout)],
            yticklabels=names,
        )
        style.bare(axes)
        style.colour_bar(
            figure,
            image,
            left + wide + 0.12,
            top_at - bar_tall,
            bar_tall,
            "gate: P(open) or |gate|",
        )

        axes = style.axes_at(figure, left, bottom, wide, low)
        axes.plot(steps, amounts.sum(1), color=COLOURS[0], label="sum over heads")
        axes.plot(
            steps,
            (amounts > threshold).sum(1),
            "--",
            color=COLOURS[1],
            label=f"above {threshold:g}",
        )
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.04 * heads))
        style.whole_ticks(axes.yaxis, 5)
        axes.set(xlabel="optimizer step", ylabel=f"open heads (of {heads})")
        axes.legend()
    return figure


def _edges(steps: Sequence[int]) -> list[float]:
    """Return cell borders around K steps, halfway between them."""
    if len(steps) == 1:
        return [steps[0] - 0.5, steps[0] + 0.5]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(steps)]
    return [2 * steps[0] - middles[0], *middles, 2 * steps[-1] - middles[-1]]


@captioned(
    "Left, the class of every head; right, each head by its gate under a price and under a reward. "
    "Heads that are "
    "open under both are needed, closed under both harmful, in between free to go. A gate stays "
    "near its start "
    "where the loss does not care."
)
def causal(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Left: a row per layer and a column per head, coloured by class.

    Right: every head by its two gates.

    columns: role (A,), index into the names of "role"; plus, minus (A,), gates under +L1 and -L1;
    threshold () of open.
    """
    role, plus, minus = columns["role"], columns["plus"], columns["minus"]
    roles, threshold = names["role"], columns["threshold"].item()
    widest = max(site.num_heads for site in layout.sites)
    cell = min(0.3, 3.6 / widest)
    left, bottom, top, side = 0.6, 0.85, 0.3, 2.0
    tall = max(style.matrix_height(layout, cell), side)
    scatter_at = left + max(cell * widest, 2.4) + 0.7
    with style.canvas((scatter_at + side + 0.2, bottom + tall + top)) as figure:
        look: Any = {"cmap": ListedColormap(SHADES), "vmin": -0.5, "vmax": len(SHADES) - 0.5}
        style.head_matrix(figure, layout, role, left, bottom + tall, cell, **look)
        counts = [int((role == i).sum()) for i in range(len(roles))]
        drawn = [i for i in range(len(roles)) if counts[i] or i < 3]
        patches = [Patch(color=SHADES[i], label=f"{roles[i]}: {counts[i]}") for i in drawn]
        figure.legend(
            handles=patches,
            loc="lower left",
            ncols=len(patches),
            borderaxespad=0.4,
            columnspacing=1.0,
        )
        axes = style.axes_at(figure, scatter_at, bottom + tall - side, side, side)
        for i in range(len(roles)):
            of: Any = role == i
            dot: Any = {"edgecolor": "0.3", "linewidth": 0.4, "clip_on": False, "zorder": 3}
            axes.scatter(plus[of], minus[of], s=12, color=SHADES[i], **dot)
        axes.axhline(threshold, color="0.6", lw=0.6, ls=":")
        axes.axvline(threshold, color="0.6", lw=0.6, ls=":")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="gate when open heads cost (+L1)")
        axes.set_ylabel("gate when they are rewarded (−L1)")  # noqa: RUF001
    return figure
