"""Canonical correlations of heads and of blocks against their index, and singular modes of heads' circuits."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names

Pairs = Sequence[Sequence[int]]


@captioned(
    "Canonical correlations of the heads of a block, from the best shared direction to the last: "
    "the mean of the "
    "pairs and their range. The dotted line is chance for as many images and directions; only what "
    "stands above "
    "it is shared."
)
def coefficients(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    pairs: Pairs = (),
) -> Figure:
    """A panel per layer: mean and range of "rho" over the pairs of its heads, and of chance, "null_rho".

    The mean at an index is over the pairs that reach it. Pairs across layers are not drawn.
    pairs: of flat head numbers, drawn as a line each instead. Raises UserError for one that was not
    compared.
    """
    if pairs:
        heads = [f"head {head} of {layout.site_names[number]}" for number, head, _ in layout]
        return draw_pairs("coefficients", pairs, heads, columns)
    reached = (~columns["rho"].isnan()).flatten(0, 1).any(0).nonzero()
    last = int(reached.max()) + 1 if len(reached) else 1
    labels = ("coefficient", "correlation")
    with style.layer_panels(layout, (1.25, 0.95), (0.55, 0.75), labels, least=3.4) as (
        figure,
        panels,
    ):
        for number, axes in enumerate(panels):
            span = layout.span(number)
            rho_HHR, null_HHR = columns["rho"][span, span], columns["null_rho"][span, span]
            a, b = torch.triu_indices(len(rho_HHR), len(rho_HHR), 1)
            rho_PR, null_PR = rho_HHR[a, b], null_HHR[a, b]
            # no pair may get that far
            index = range(1, rho_PR.shape[1] + 1)
            there = (~rho_PR.isnan()).any(0)
            low, high = rho_PR.new_zeros(2, len(index))
            if len(a):
                low = rho_PR.nan_to_num(torch.inf).amin(0)
                high = rho_PR.nan_to_num(-torch.inf).amax(0)
            band = axes.fill_between(
                index, low, high, where=there.tolist(), color=COLOURS[0], alpha=0.25, linewidth=0
            )
            (mean,) = axes.plot(
                index, rho_PR.nanmean(0), color=COLOURS[0], marker="o", markersize=2
            )
            (chance,) = axes.plot(
                index, null_PR.nanmean(0), color="black", linestyle=":", linewidth=1.2
            )
            axes.set(xlim=(0.5, last + 0.5), ylim=(0, 1.02), yticks=[0, 0.5, 1])
            style.whole_ticks(axes.xaxis, 4)  # of the limits, which a control may change
        texts = ["mean of the pairs", "their range", "chance"]
        figure.legend([mean, band, chance], texts, loc="lower center", ncols=3, borderaxespad=0.3)
    return figure


def draw_pairs(
    asker: str, pairs: Pairs, titles: Sequence[str], columns: Mapping[str, Tensor]
) -> Figure:
    """A line per pair from "rho", dotted its chance from "null_rho"; both (N, N, R).

    titles: of the N heads or blocks. asker: figure's name, for the UserError on a pair that was not
    compared.
    """
    with style.panel((2.6, max(1.9, 0.3 * len(pairs) + 0.2)), (0.55, 0.5, 2.45, 0.2)) as (
        figure,
        axes,
    ):
        for number, pair in enumerate(pairs):
            two = isinstance(pair, Sequence) and len(set(pair)) == len(pair) == 2
            there = two and all(type(end) is int and 0 <= end < len(titles) for end in pair)
            if not there or columns["rho"][tuple(pair)].isnan().all():
                raise UserError(
                    f"{asker}.pairs: expected pairs of two different numbers of 0 to "
                    f"{len(titles) - 1} that were "
                    f"compared, e.g. [[0, 1]], got {pair}. Take another pair, or pairs=null for "
                    "all."
                )
            shade, _ = style.colour(number)
            pair_lines(axes, columns, pair, shade, label=" and\n".join(titles[end] for end in pair))
        axes.plot([], [], ":", color="0.4", label="chance, of the same pair")
        axes.set(ylim=(0, 1.02), yticks=[0, 0.5, 1], xlabel="coefficient", ylabel="correlation")
        style.whole_ticks(axes.xaxis)
        style.legend_beside(axes, 1.03)
    return figure


def pair_lines(
    axes: Axes,
    columns: Mapping[str, Tensor],
    pair: Sequence[int],
    shade: Any,
    widths: tuple[float, float] = (1, 1),
    label: str | None = None,
) -> None:
    """Draw a pair's "rho" as a line and its chance, "null_rho", dotted.

    widths: of both, in points.
    """
    for (column, line), width in zip((("rho", "-"), ("null_rho", ":")), widths, strict=True):
        rho = columns[column][tuple(pair)]
        rho = rho[rho.isfinite()]
        name = label if column == "rho" else None
        axes.plot(
            range(1, len(rho) + 1), rho.tolist(), line, color=shade, linewidth=width, label=name
        )


@captioned(
    "How many directions two blocks share, and how well: a line per pair of blocks, light for "
    "neighbours and dark for "
    "blocks far apart. Dotted is chance, of the same pair. Blocks add to one stream, so neighbours "
    "are alike anyway."
)
def block_coefficients(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    pairs: Pairs = (),
) -> Figure:
    """A line per pair of blocks, from "rho" and "null_rho" (S, S, R).

    pairs: of layer numbers, drawn in one panel instead, also across stages. Raises UserError for
    one that is missing.
    """
    if pairs:
        return draw_pairs("block_coefficients", pairs, layout.site_names, columns)
    panels = _panels_of_blocks(layout)
    shades = _shades_of_distances(list(panels.values()))
    edges, least = (0.55, 0.5, 1.35, 0.35), 4.1
    with style.grid(len(panels), (1.7, 1.5), (0.25, 0), edges, least, len(panels) or 1) as (
        figure,
        places,
    ):
        for (axes, first, _), (name, numbers) in zip(places, panels.items(), strict=True):
            for (i, a), (j, b) in itertools.combinations(enumerate(numbers), 2):
                pair_lines(axes, columns, (a, b), shades[j - i - 1], widths=(0.9, 0.7))
            axes.set_title(name, pad=3)
            axes.set_yticks([0, 0.5, 1], None if first else [""] * 3)
            axes.set(ylim=(0, 1.02), xlabel="coefficient", ylabel="correlation" if first else "")
        if panels:
            _legend_of_distances(axes, shades)
    return figure


def _panels_of_blocks(layout: HeadLayout) -> dict[str, list[int]]:
    """Return the layers of each panel, of two or more: those of a stage, and the last ones of all stages."""
    stages: dict[str, list[int]] = {}
    for number, site in enumerate(layout.sites):
        name = f"stage {site.stage}" if layout.num_stages > 1 else "blocks"
        stages.setdefault(name, []).append(number)
    last = {"last blocks of stages": [numbers[-1] for numbers in stages.values()]}
    return {name: numbers for name, numbers in (stages | last).items() if len(numbers) > 1}


def _shades_of_distances(panels: Sequence[Sequence[int]]) -> list[Any]:
    """Return the shades of blocks 1, 2, ... apart, as far as those of a panel are: dark is far."""
    furthest = max((len(numbers) - 1 for numbers in panels), default=1)
    return [
        style.shades("viridis_r")(0.3 + 0.7 * steps / max(1, furthest - 1))
        for steps in range(furthest)
    ]


def _legend_of_distances(axes: Axes, shades: Sequence[Any]) -> None:
    """Say beside the last panel which shade is which distance. shades: of blocks 1, 2, ... apart."""
    furthest = len(shades)
    for steps in sorted({1, min(2, furthest), furthest}):
        label = "neighbours" if steps == 1 else f"{steps} apart"
        axes.plot([], [], color=shades[steps - 1], label=label)
    axes.plot([], [], ":", color="0.4", label="chance")
    style.legend_beside(axes, 1.05)


@captioned(
    "Every singular mode of every head, a panel per layer: across, its singular value as a share "
    "of the head's "
    "largest; up, the cosine of its two directions. Above 0 like is tied to like, below 0 to its "
    "opposite. The grey "
    "band holds 95 % of what chance, random directions, would give a head's mean."
)
def modes(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Modes from "singular" and "cosine" (A, K), NaN where there is none; "value", "null_low", "null_high" (A,)."""
    share = columns["singular"] / columns["singular"][:, :1]
    labels = ("singular value\n(share of largest)", "cosine")
    with style.layer_panels(layout, (1.25, 1.0), (0.6, 0.78), labels, least=3.4) as (
        figure,
        panels,
    ):
        for number, axes in enumerate(panels):
            span = layout.span(number)
            low = columns["null_low"][span].mean().item()
            high = columns["null_high"][span].mean().item()
            band = axes.axhspan(low, high, color="0.85", linewidth=0, zorder=0)
            x = share[span].flatten()
            y = columns["cosine"][span].flatten()
            finite = x.isfinite() & y.isfinite()
            dots = axes.scatter(
                x[finite], y[finite], s=4, linewidths=0, alpha=0.6, color=COLOURS[0]
            )
            heads = columns["value"][span]
            marks = axes.scatter(
                torch.full_like(heads, 1.06),
                heads,
                s=14,
                marker="_",
                color=COLOURS[1],
                linewidths=1,
            )
            axes.set(xlim=(-0.02, 1.12), ylim=(-1.05, 1.05), yticks=[-1, 0, 1])
            axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        texts = ["a mode", "a head's mean", "chance"]
        figure.legend([dots, marks, band], texts, loc="lower center", ncols=3, borderaxespad=0.2)
    return figure
