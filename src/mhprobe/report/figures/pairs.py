"""Figures of pairs: likeness of heads or of layers as matrices, in depth, and as points in a plane."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.io.written import rounded
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.pruned import LABEL_SHADES
from mhprobe.report.figures.style import COLOURS, MARKERS, NAMELESS, Axes, Figure, Names

Limits = Literal["shared", "each"] | Sequence[float]


@captioned(
    "How alike every two heads are. Chance for as many images is marked on the colour bar, and so is a freshly "
    "initialised network where it was probed: likeness that is no larger was not learned. Beside the label, how wide "
    "the 95 % interval of a pair is, at the median; the table has that of each.",
    draws_control=True,  # from the column "random_init"
)
def pairwise(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    limits: Limits = "shared",
) -> Figure:
    """One head x head matrix per layer, or one over all heads where layers were compared too.

    limits: of the colours: "shared" by all matrices, "each" its own (its title says them), or (lowest, highest).
    A head and itself are grey: their 1 would flatten everything else. With "null", the chance level is drawn on the
    colour bar, as a band where it differs from pair to pair, or from "null_low" to "null_high"; with "random_init", the
    mean of the untrained control.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    if 0 < value.isfinite().any(1).sum() <= len(value) // 2:  # most of a matrix over all heads would be grey
        return few_heads(layout, columns, label, names)
    matrices, titles = _matrices(layout, value)
    across = matrices[0] is value
    side = 5.0 if across else 1.35
    left, bottom, top, space = 0.55, 0.5, 0.35, 0.42
    if limits == "each":  # titles of two lines
        top, space = top + 0.12, space + 0.12
    size, gap = (side, side), (space, space)
    wide, tall = style.grid_size(len(matrices), size, gap)
    nulls = [columns[name] for name in ("null_low", "null", "null_high") if name in columns]
    chance = torch.cat([null[value.isfinite()].double() for null in nulls]) if nulls else value.new_empty(0)
    control = style.control_of(columns)
    own = limits == "each" and not across  # a matrix alone has its own limits anyway
    bar_at = left + wide + (0.95 if len(chance) or len(control) else 0.2)  # they are written beside the bar
    bar_tall = min(tall, 3.0)

    label = style.wrapped(f"{label}{style.typical_width(columns)}", bar_tall)
    with style.canvas((bar_at + 1.0 + 0.15 * label.count("\n"), bottom + tall + top)) as figure:
        cmap, norm = _colours(limits, torch.cat([value.flatten(), chance]))
        noun = "block" if across else "head"
        places = style.panels(figure, len(matrices), (left, bottom), size, gap)
        for (axes, beside, below), matrix, title in zip(places, matrices, titles, strict=True):
            image = axes.imshow(matrix.numpy(), cmap=cmap, norm=style.scale(matrix)[1] if own else norm)
            axes.set_title(_with_limits(title, matrix) if own else title, pad=3)
            _mark_blocks(axes, layout) if across else _mark_heads(axes, len(matrix), side)
            axes.set(xlabel=noun if below else "", ylabel=noun if beside else "")
            if len({len(matrix) for matrix in matrices}) == 1:  # all have the same heads
                axes.tick_params(labelbottom=below, labelleft=beside)
        bar = style.colour_bar(figure, image, bar_at, bottom + (tall - bar_tall) / 2, bar_tall, label)
        if own:  # every matrix's limits stand above it
            bar.set_ticks(list(bar.ax.get_ylim()), labels=["lowest", "highest"])
        else:
            style.mark_chance(bar.ax, chance)
            style.mark_control(bar.ax, control, chance)
    return figure


def _matrices(layout: HeadLayout, value: Tensor) -> tuple[list[Tensor], list[str]]:
    """The matrices and their titles: ``value`` itself where layers were compared too."""
    blocks = [value[layout.span(i), layout.span(i)] for i in range(len(layout.sites))]
    if value.isfinite().sum() > sum(block.isfinite().sum() for block in blocks):
        return [value], [""]
    return blocks, [style.site_title(layout, i) for i in range(len(layout.sites))]


def _mark_heads(axes: Axes, heads: int, side: float) -> None:
    axes.set(xticks=style.ticks(heads, side / heads), yticks=style.ticks(heads, side / heads))
    if heads <= 16:  # more would leave little but lines
        style.cells(axes, heads, heads)


def _colours(limits: Limits, values: Tensor) -> tuple[Any, Any]:
    """Colour map and scale; with fixed limits those."""
    cmap, norm = style.scale(values)
    if not isinstance(limits, str):
        norm.vmin, norm.vmax = limits
    return cmap, norm


def _with_limits(title: str, panel: Tensor) -> str:
    """The block, and between what its colours lie."""
    known = panel[panel.isfinite()]
    return f"{title}\n{rounded(known.min())} to {rounded(known.max())}" if len(known) else title


def _mark_blocks(axes: Axes, layout: HeadLayout) -> None:
    """A line between two blocks, and each one's number at the middle of its heads."""
    for edge in layout.offsets[1:-1]:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    middles = [(a + b - 1) / 2 for a, b in itertools.pairwise(layout.offsets)]
    blocks = [str(site.block) for site in layout.sites]
    axes.set_xticks(middles, blocks)
    axes.set_yticks(middles, blocks)
    axes.tick_params(length=0)


@captioned(
    "A value for every pair among the heads that were compared. A dot: it differs from 0 by more than chance, with "
    "Holm's correction over all pairs that were looked at (5 %). Where a measure has no such p, a dot says that the "
    "95 % interval of this pair excludes 0 (or chance, where that is not 0), which one pair in twenty does by chance.",
    draws_control=True,  # from the column "random_init"
)
def few_heads(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Heads that were compared with any other; a dot where "p_holm" is below .05.

    Without "p_holm" the dot is where the 95 % interval from "low" to "high" excludes "null", or 0 where there is none.
    With "random_init", the mean over the pairs of the untrained control is marked on the colour bar.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    heads = value.isfinite().any(1).nonzero().flatten()
    shown = value[heads[:, None], heads]
    places = list(layout)
    shown_names = [f"{places[head][2].block}.{places[head][1]}" for head in heads.tolist()]
    count = len(shown_names)
    cell = 0.32 if count <= 16 else 5.0 / count
    side = max(1.2, cell * count)
    left, bottom = 0.7, 0.65
    control = style.control_of(columns)
    beside = 0.8 if len(control) else 0.15  # the control is written there
    with style.canvas((left + side + beside + 1.25, bottom + max(side, 1.4) + 0.35)) as figure:
        axes = style.place(figure, left, bottom, side, side)
        cmap, norm = style.scale(shown)
        image = axes.imshow(shown.numpy(), cmap=cmap, norm=norm)
        if count <= 24:
            style.cells(axes, count, count)
        if (found := _beyond_chance(columns)) is not None:
            beyond, how = found
            row, column = (beyond[heads[:, None], heads] & shown.isfinite()).nonzero().unbind(1)
            axes.plot(column.tolist(), row.tolist(), "o", color="black", markersize=2.5, linestyle="")
            axes.set_title(f"dot: {how}", loc="left", fontsize=7, pad=4)
        stride = max(1, round(0.2 / (side / count)))
        axes.set_xticks(range(0, count, stride), shown_names[::stride], rotation=90)
        axes.set_yticks(range(0, count, stride), shown_names[::stride])
        axes.set(xlabel="block.head", ylabel="block.head")
        bar = style.colour_bar(figure, image, left + side + beside, bottom, side, style.wrapped(label, max(side, 1.6)))
        style.mark_control(bar.ax, control, value.new_empty(0))
    return figure


def _beyond_chance(columns: Mapping[str, Tensor]) -> tuple[Tensor, str] | None:
    """(A, A) bool, which pairs differ from 0, and what that means; None where nothing tells."""
    if "p_holm" in columns:
        return columns["p_holm"] < 0.05, "not 0 (Holm, 5 %)"
    if {"low", "high"} <= set(columns):
        level = columns.get("null", torch.zeros_like(columns["value"]))
        said = "95 % interval excludes " + ("chance" if "null" in columns else "0")
        return (columns["low"] > level) | (columns["high"] < level), said
    return None


@captioned(
    "How alike every two blocks are, input at the top left. Near the diagonal everything is alike: blocks add to "
    "one stream. Chance and a freshly initialised network are marked at the colour bar; beside its label stands how "
    "wide the 95 % interval of a pair is, at the median.",
    draws_control=True,  # from the column "random_init"
)
def pairwise_layers(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Layer x layer, input at the top left; grey: not compared, and a layer with itself.

    Lines part the stages. With "null", the chance level stands at the colour bar, or is written below it where layers
    are so alike that it would take up most of the scale. So does, with "random_init", the untrained control's mean.
    """
    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    compared = value.isfinite()
    null = columns.get("null")
    chance = null[compared].double() if null is not None else value.new_empty(0)
    layers = len(value)
    side = min(4.5, max(1.6, 0.3 * layers))
    control = style.control_of(columns)
    room = 0.3 if len(control) else 0.0  # above or below the bar
    left, bottom, top = 0.55, 0.5 + room, 0.15 + room
    bar_at = left + side + 0.85  # chance may be written beside the bar
    label = style.wrapped(f"{label}{style.typical_width(columns)}", side)
    with style.canvas((bar_at + 1.0 + 0.15 * label.count("\n"), bottom + side + top)) as figure:
        cmap, norm = style.scale(value)
        axes = style.place(figure, left, bottom, side, side)
        image = axes.imshow(value.numpy(), cmap=cmap, norm=norm)
        style.cells(axes, layers, layers)
        stages = [site.stage for site in layout.sites]
        for edge in (i for i in range(1, layers) if stages[i] != stages[i - 1]):
            axes.axhline(edge - 0.5, color="0.2", linewidth=0.8)
            axes.axvline(edge - 0.5, color="0.2", linewidth=0.8)
        shown = style.ticks(layers, side / layers)
        blocks_shown = [str(layout.sites[i].block) for i in shown]
        axes.set_xticks(shown, blocks_shown)
        axes.set_yticks(shown, blocks_shown)
        axes.set(xlabel="block", ylabel="block")
        bar = style.colour_bar(figure, image, bar_at, bottom, side, label)
        style.mark_chance(bar.ax, chance)
        style.mark_control(bar.ax, control, chance)
    return figure


@captioned(
    "The pairs of heads of each block: a point is their mean, the bar their range, the dash what chance gives. "
    "A mean on the dash says that the heads have nothing in common."
)
def by_block(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Mean, least and greatest "value" (A, A) of the pairs within each block, and the mean of "null"."""
    blocks = [site.block for site in layout.sites]
    step = min(0.4, 6.0 / len(blocks))
    wide = max(2.2, step * len(blocks))
    with style.canvas((0.7 + wide + 0.15, 2.7)) as figure:
        axes = style.place(figure, 0.6, 0.5, wide, 1.85)
        for number, site in enumerate(layout.sites):
            span = layout.span(number)
            pairs = torch.triu_indices(site.num_heads, site.num_heads, 1)
            found = columns["value"].double()[span, span][pairs[0], pairs[1]]
            found = found[found.isfinite()]
            if not len(found):
                continue
            first = "mean of the pairs" if number == 0 else ""
            axes.vlines(site.block, found.min(), found.max(), color="#56B4E9", linewidth=2)
            axes.plot(site.block, found.mean(), "o", color=COLOURS[0], markersize=4, label=first)
            if "null" in columns:
                level = columns["null"].double()[span, span][pairs[0], pairs[1]].nanmean()
                text = "chance" if number == 0 else ""
                axes.plot(site.block, level, "_", color="black", markersize=9, label=text)
        for edge in (b for a, b in zip(layout.sites, layout.sites[1:], strict=False) if a.stage != b.stage):
            axes.axvline(edge.block - 0.5, color="0.8", linewidth=0.8, zorder=0)
        style.block_ticks(axes, layout, step)
        axes.set_xlim(blocks[0] - 0.6, blocks[-1] + 0.6)
        axes.set_ylabel(label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


@captioned(
    "How alike the heads of each block are: points are means over pairs, bars reach from the least to the most alike "
    "pair. What stands apart from the untrained network is what training added."
)
def before_training(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Figure:
    """Similarity of heads in a trained and in an untrained network, block by block, a panel per measure.

    rows: measure, network, block, min, mean, max. labels: of the measures, for the axes.
    """
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    blocks = sorted({row["block"] for row in rows})
    step = min(0.4, 4.0 / len(blocks))
    wide, tall, gap, left = max(1.7, step * len(blocks)), 2.0, 0.75, 0.7
    with style.canvas((left + len(measures) * (wide + gap) + 1.1, tall + 0.75)) as figure:
        for number, name in enumerate(measures):
            axes = style.place(figure, left + number * (wide + gap), 0.5, wide, tall)
            for k, network in enumerate(("trained", "untrained")):
                of = [row for row in rows if (row["measure"], row["network"]) == (name, network)]
                shade, marker = style.colour(k)
                at = [row["block"] + 0.24 * (k - 0.5) for row in of]
                axes.vlines(at, [row["min"] for row in of], [row["max"] for row in of], color=shade, alpha=0.4, lw=2)
                axes.plot(
                    at,
                    [row["mean"] for row in of],
                    marker,
                    color=shade,
                    markersize=4,
                    label=f"{network}, mean of pairs",
                )
            axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)
            axes.set_xticks([blocks[i] for i in style.ticks(len(blocks), step)])
            axes.set_xlabel("block")
            axes.set_ylabel(style.wrapped(labels[name], tall))
        axes.vlines([], [], [], color="0.3", alpha=0.4, lw=2, label="least to greatest pair")
        style.legend_beside(axes)
    return figure


@captioned(
    "How alike heads are that were masked before the accuracy drops, at the drop, or kept: how far their pairs stand "
    "above the mean of all pairs of the same layers. The band holds 95 % of what groups give that are dealt out anew "
    "within each layer; a filled point is beyond it by p < .05 (Holm)."
)
def groups_of_pairs(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Similarity of heads of two groups above that of their layers' heads: a point and a band per pair of groups.

    rows: curve, group_a, group_b, pairs, above, chance_low, chance_high, p_holm.
    """
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    kinds = list(dict.fromkeys((row["group_a"], row["group_b"]) for row in rows))
    tall, wide = 0.28 * len(kinds) + 0.1, 2.0
    with style.canvas((1.35 + len(curves) * (wide + 0.25), tall + 0.98)) as figure:
        for number, curve in enumerate(curves):
            axes = style.place(figure, 1.25 + number * (wide + 0.25), 0.62, wide, tall)
            for row in (row for row in rows if row["curve"] == curve):
                y = kinds.index((row["group_a"], row["group_b"]))
                axes.hlines(y, row["chance_low"], row["chance_high"], color="0.8", linewidth=5)
                face = COLOURS[0] if row["p_holm"] < 0.05 else "white"
                axes.plot(row["above"], y, "o", color=COLOURS[0], markerfacecolor=face, markersize=4)
                axes.text(
                    1.0, y - 0.12, f"{row['pairs']} ", fontsize=6, ha="right", transform=axes.get_yaxis_transform()
                )
            style.rows_of(axes, [f"among {a}" if a == b else f"{a} with {b}" for a, b in kinds], number == 0)
            axes.set_ylim(top=-0.6)
            axes.axvline(0, color="0.6", linewidth=0.6, zorder=0)
            axes.margins(x=0.25)
            axes.set_xlabel("similarity above the layers' mean\n(grey: chance; right: pairs)")
            axes.set_title(curve, pad=3)
    return figure


@captioned(
    "Heads as points: near points are alike. Only distances count, axes have no meaning. Distances are squeezed "
    "into a plane, so look up a striking pair in the table. Clusters are found in noise too."
)
def embedding(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """One panel of all heads where layers were compared, coloured by block; otherwise one per layer, on one scale.

    Markers are clusters. In panels of one layer, numbers are heads.
    """
    groups = _compared(layout, columns["value"])
    together = len(groups) < len(layout.sites)
    points, cluster = columns["embedding"].double(), columns["cluster"].long()
    reach = 1.15 * max(points.abs().max().item(), 1e-6)
    side = 3.4 if len(groups) == 1 else 1.5
    left, bottom, size, gap = 0.65, 0.5, (side, side), (0.3, 0.3)
    wide, tall = style.grid_size(len(groups), size, gap)
    with style.canvas(
        (max(5.0, left + wide + (0.9 if together else 0.15)), bottom + tall + 0.3)
    ) as figure:  # room for words
        shades = style.block_shades(layout)
        places = style.panels(figure, len(groups), (left, bottom), size, gap)
        for number, ((axes, beside, below), sites) in enumerate(zip(places, groups, strict=True)):
            for s in sites:
                for head, flat in enumerate(range(*layout.span(s).indices(layout.num_heads))):
                    x, y = points[flat].tolist()
                    kind = int(cluster[flat])
                    shade = shades.to_rgba(layout.sites[s].block) if together else COLOURS[kind % len(COLOURS)]
                    axes.plot(x, y, MARKERS[kind % len(MARKERS)], color=shade, ms=5 if together else 4, mew=0)
                    if not together:
                        axes.annotate(str(head), (x, y), xytext=(2.5, 2.5), textcoords="offset points", fontsize=6)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes.locator_params(nbins=4)
            if len(groups) > 1:
                axes.set_title(style.site_title(layout, sites[0]) if len(sites) == 1 else f"stage {number}", pad=3)
            axes.tick_params(labelbottom=below, labelleft=beside)
        if together:
            style.block_bar(figure, shades, left + wide + 0.15, bottom, side, "block (markers: clusters)")
        figure.text(
            0.5, 0.06 / style.inches(figure)[1],
            f"embedding of {label}" + ("" if together else " (colours and markers: clusters, numbers: heads)"),
            ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
    return figure


def _compared(layout: HeadLayout, value: Tensor) -> list[list[int]]:
    """Sites whose heads were compared with each other."""
    groups: list[list[int]] = []
    for s in range(len(layout.sites)):
        first = groups[-1][0] if groups else s
        if groups and not value[layout.offsets[first], layout.offsets[s]].isnan():
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups


class Group(NamedTuple):
    """N heads that were compared. points (N, 2); labels: what each does; cluster (N,)."""

    title: str
    points: Tensor
    labels: Sequence[str]
    cluster: Tensor


@captioned(
    "Heads as points: near points attend alike (Jensen-Shannon divergence). Colour: what the head does, by stated "
    "thresholds; shape: its cluster. The title has the silhouette of the clusters (1: far apart, 0: touching) with the "
    "share of unclustered draws that reach it: above 0.05 the clusters may be a cut through one cloud."
)
def behaviours(groups: Sequence[Group]) -> Figure:
    """A panel per group, each with its own scale."""
    side = 3.2 if len(groups) == 1 else 1.9
    left, bottom, size, gap = 0.5, 0.35, (side, side), (0.45, 0.8)
    wide, tall = style.grid_size(len(groups), size, gap)
    with style.canvas((left + wide + 1.25, bottom + tall + 0.55)) as figure:
        for (axes, _, _), group in zip(
            style.panels(figure, len(groups), (left, bottom), size, gap), groups, strict=True
        ):
            for (x, y), label, kind in zip(group.points.tolist(), group.labels, group.cluster.tolist(), strict=True):
                axes.plot(x, y, MARKERS[kind % len(MARKERS)], color=LABEL_SHADES[label], ms=5, mec="0.3", mew=0.4)
            reach = 1.15 * max(group.points.abs().max().item(), 1e-6)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes.locator_params(nbins=4)
            axes.set_title(group.title, loc="left", pad=4, fontsize=7)
        there = [label for label in LABEL_SHADES if any(label in group.labels for group in groups)]
        for label in there:
            axes.plot([], [], "o", color=LABEL_SHADES[label], ms=5, mec="0.3", mew=0.4, label=label)
        for kind in range(1 + max(int(group.cluster.max()) for group in groups)):
            axes.plot([], [], MARKERS[kind % len(MARKERS)], color="white", ms=5, mec="0.3", label=f"cluster {kind + 1}")
        style.legend_beside(axes, 1.04)
    return figure
