"""Figures of pairs: likeness of heads or of layers as matrices, in depth, and as points in a plane."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.io.written import rounded
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.pruned import LABEL_SHADES
from mhprobe.report.figures.style import COLOURS, MARKERS, NAMELESS, Axes, Figure, Names
from mhprobe.stats.significance import significant

Limits = Literal["shared", "each"] | Sequence[float]


@captioned(
    "How alike every two heads are. Chance for as many images is marked on the colour bar, and so "
    "is a freshly "
    "initialised network where it was probed: likeness that is no larger was not learned. Beside "
    "the label, how wide "
    "the 95 % interval of a pair over images is, at the median; the table has that of each.",
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
    """One head x head matrix per layer, or one over all heads if layers were compared too.

    limits: of the colours: "shared" by all matrices, "each" its own, in its title, or (lowest,
    highest). "null", "null_low" and "null_high" are chance, "random_init" is the untrained network.
    """
    value = style.without_diagonal(columns["value"])
    if _mostly_grey(value):
        return few_heads(layout, columns, label, names)
    matrices, titles = _matrices(layout, value)
    across = titles == [""]  # layers were compared, too
    side, noun = (5.0, "block") if across else (1.35, "head")
    line = 0.12 if limits == "each" else 0  # a second one of the titles
    size, gap = (side, side), (0.42 + line, 0.42 + line)
    wide, tall = style.grid_size(len(matrices), size, gap)
    chance = _chance(columns, value)
    control = style.control_of(columns)
    per_matrix = limits == "each" and not across  # a matrix alone has its own limits anyway
    bar_at = 0.55 + wide + _room_of_marks(chance, control)
    bar_tall = min(tall, 3.0)
    label = style.wrapped(f"{label}{style.typical_width(columns)}", bar_tall)
    edges = (0.55, 0.5, bar_at - 0.55 - wide + 1.0 + 0.15 * label.count("\n"), 0.35 + line)
    with style.grid(len(matrices), size, gap, edges) as (figure, places):
        cmap, norm = _colours(torch.cat([value.flatten(), chance]), limits)
        norms = [norm] * len(matrices)
        if per_matrix:
            norms, titles = _each_with_its_own(matrices, titles)
        alike = len(set(map(len, matrices))) == 1  # all have the same heads
        for (axes, first, last), matrix, own, title in zip(
            places, matrices, norms, titles, strict=True
        ):
            image = axes.imshow(matrix.numpy(), cmap=cmap, norm=own)
            axes.set_title(title, pad=3)
            if across:
                _parted(axes, layout.offsets[1:-1], "white", style.middles(layout), layout.sites)
                axes.tick_params(length=0)
            else:
                _ticked(axes, len(matrix), side)
            _named(axes, noun, first, last, alike)
        bar = style.colour_bar(figure, image, bar_at, 0.5 + (tall - bar_tall) / 2, bar_tall, label)
        if per_matrix:  # every matrix's limits stand above it
            bar.set_ticks(list(bar.ax.get_ylim()), labels=["lowest", "highest"])
        else:
            style.mark(bar.ax, chance, control)
    return figure


def _mostly_grey(value: Tensor) -> bool:
    """Return True if some heads were compared, and so few that a matrix over all would be grey."""
    compared = int(value.isfinite().any(1).sum())
    return 0 < compared <= len(value) // 2


def _colours(values: Tensor, limits: Limits) -> tuple[Any, Any]:
    """Return the colour map and norm that matrices share; limits: as of ``pairwise``."""
    cmap, norm = style.scale(values)
    if not isinstance(limits, str):
        norm.vmin, norm.vmax = limits
    return cmap, norm


def _each_with_its_own(
    matrices: Sequence[Tensor], titles: Sequence[str]
) -> tuple[list[Any], list[str]]:
    """Return a norm for each matrix, and its title with the limits of its colours."""
    norms = [style.scale(matrix)[1] for matrix in matrices]
    return norms, [
        _with_limits(title, matrix) for title, matrix in zip(titles, matrices, strict=True)
    ]


def _room_of_marks(chance: Tensor, control: Tensor) -> float:
    """Return the inches between matrices and their colour bar, beside which chance and control are written."""
    return 0.95 if len(chance) or len(control) else 0.2


def _matrices(layout: HeadLayout, value: Tensor) -> tuple[list[Tensor], list[str]]:
    """Return a matrix per layer and their titles; one over all heads, without a title, if layers were compared."""
    spans = [layout.span(number) for number in range(len(layout.sites))]
    matrices = [value[span, span] for span in spans]
    if bool(value.isfinite().sum() > sum(matrix.isfinite().sum() for matrix in matrices)):
        return [value], [""]
    return matrices, [style.site_title(layout, number) for number in range(len(layout.sites))]


def _named(axes: Axes, noun: str, first: bool, last: bool, alike: bool) -> None:
    """Name the axes at the edge of the page. alike: number them there alone, too."""
    axes.set(xlabel=noun if last else "", ylabel=noun if first else "")
    if alike:
        axes.tick_params(labelbottom=last, labelleft=first)


def _chance(columns: Mapping[str, Tensor], value: Tensor) -> Tensor:
    """(n,) what chance gives, at all pairs that have a value; empty without."""
    nulls = [columns[name] for name in ("null_low", "null", "null_high") if name in columns]
    if not nulls:
        return value.new_empty(0)
    return torch.cat([null[value.isfinite()].double() for null in nulls])


def _with_limits(title: str, matrix: Tensor) -> str:
    """Return a matrix's title with its lowest and highest value."""
    finite = matrix[matrix.isfinite()]
    if not len(finite):
        return title
    return f"{title}\n{rounded(finite.min())} to {rounded(finite.max())}"


def _ticked(axes: Axes, count: int, side: float) -> None:
    """Number the heads of a block's matrix; lines between its cells where there are few."""
    ticks = style.ticks(count, side / count)
    axes.set(xticks=ticks, yticks=ticks)
    if count <= 16:  # more lines would leave little else
        style.part_cells(axes, count, count)


def _parted(
    axes: Axes, edges: Sequence[int], shade: str, at: Sequence[float], sites: Sequence[HeadSite]
) -> None:
    """Draw lines between rows and between columns, and number blocks on both axes."""
    for edge in edges:
        axes.axhline(edge - 0.5, color=shade, linewidth=0.8)
        axes.axvline(edge - 0.5, color=shade, linewidth=0.8)
    axes.set_xticks(at, [str(site.block) for site in sites])
    axes.set_yticks(at, [str(site.block) for site in sites])


@captioned(
    "A value for every pair among the heads that were compared. A dot: it differs from 0 by more "
    "than chance, with "
    "Holm's correction over all pairs that were looked at (5 %). Where a measure has no such p, a "
    "dot says that the "
    "95 % interval over images excludes 0 (or chance, where that is not 0), as that of one pair in "
    "twenty by chance.",
    draws_control=True,  # from the column "random_init"
)
def few_heads(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Heads that were compared with any other; a dot if "p_holm" is below .05, or the interval excludes chance."""
    value = style.without_diagonal(columns["value"])
    heads = value.isfinite().any(1).nonzero().flatten()
    shown = value[heads[:, None], heads]
    places = list(layout)
    count = len(heads)
    shown_names = [f"{places[head][2].block}.{places[head][1]}" for head in heads.tolist()]
    side = max(1.2, 0.32 * count if count <= 16 else 5.0)
    control = style.control_of(columns)
    beside = 0.8 if len(control) else 0.15  # the control is written there
    with style.panel((side, side), (0.7, 0.65, beside + 1.25, 0.35 + max(0.0, 1.4 - side))) as (
        figure,
        axes,
    ):
        image = style.picture(axes, shown, aspect="equal")
        if count <= 24:
            style.part_cells(axes, count, count)
        beyond: Tensor | None = None  # pairs that differ from 0, or from chance
        if "p_holm" in columns:
            beyond, how = significant(columns["p_holm"]), "not 0 (Holm, 5 %)"
        elif {"low", "high"} <= set(columns):
            level = columns.get("null", torch.zeros_like(columns["value"]))
            beyond = (columns["low"] > level) | (columns["high"] < level)
            how = f"95 % interval excludes {'chance' if 'null' in columns else '0'}"
        if beyond is not None:
            row, column = (beyond[heads[:, None], heads] & shown.isfinite()).nonzero().unbind(1)
            axes.plot(
                column.tolist(), row.tolist(), "o", color="black", markersize=2.5, linestyle=""
            )
            axes.set_title(f"dot: {how}", loc="left", fontsize=7, pad=4)
        stride = max(1, round(0.2 / (side / count)))
        axes.set_xticks(range(0, count, stride), shown_names[::stride], rotation=90)
        axes.set_yticks(range(0, count, stride), shown_names[::stride])
        axes.set(xlabel="block.head", ylabel="block.head")
        label = style.wrapped(label, max(side, 1.6))
        style.mark(style.bar_beside(axes, image, label, beside).ax, value.new_empty(0), control)
    return figure


@captioned(
    "How alike every two blocks are, input at the top left. Near the diagonal everything is alike: "
    "blocks add to "
    "one stream. Chance and a freshly initialised network are marked at the colour bar; beside its "
    "label stands how "
    "wide the 95 % interval of a pair over images is, at the median.",
    draws_control=True,  # from the column "random_init"
)
def pairwise_layers(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Layer x layer; lines part the stages.

    Chance is written below a bar of which it would take up most.
    """
    value = style.without_diagonal(columns["value"])
    chance = columns["null"][value.isfinite()].double() if "null" in columns else value.new_empty(0)
    layers = len(value)
    side = min(4.5, max(1.6, 0.3 * layers))
    control = style.control_of(columns)
    room = 0.3 if len(control) else 0.0  # above or below the bar
    label = style.wrapped(f"{label}{style.typical_width(columns)}", side)
    # chance may be written beside the bar
    edges = (0.55, 0.5 + room, 1.85 + 0.15 * label.count("\n"), 0.15 + room)
    with style.panel((side, side), edges) as (figure, axes):
        image = style.picture(axes, value, aspect="equal")
        style.part_cells(axes, layers, layers)
        stages = [site.stage for site in layout.sites]
        edges_of_stages = [i for i in range(1, layers) if stages[i] != stages[i - 1]]
        shown = style.ticks(layers, side / layers)
        _parted(axes, edges_of_stages, "0.2", shown, [layout.sites[i] for i in shown])
        axes.set(xlabel="block", ylabel="block")
        style.mark(style.bar_beside(axes, image, label, 0.85).ax, chance, control)
    return figure


@captioned(
    "The pairs of heads of each block: a point is their mean, the bar their range, the dash what "
    "chance gives. "
    "A mean on the dash says that the heads have nothing in common."
)
def by_block(layout: HeadLayout, rows: Sequence[Mapping[str, Any]], label: str) -> Figure:
    """Mean and range of the pairs within each block.

    rows: block, min, mean, max, and perhaps null.
    """
    step = min(0.4, 6.0 / len(layout.sites))
    with style.panel((max(2.2, step * len(layout.sites)), 1.85), (0.6, 0.5, 0.25, 0.35)) as (
        figure,
        axes,
    ):
        _ranges(axes, rows, 0, "mean of the pairs")
        if rows and "null" in rows[0]:
            at, chance = zip(*((row["block"], row["null"]) for row in rows), strict=True)
            axes.plot(at, chance, "_", color="black", markersize=9, label="chance")
        for edge in (b for a, b in itertools.pairwise(layout.sites) if a.stage != b.stage):
            axes.axvline(edge.block - 0.5, color="0.8", linewidth=0.8, zorder=0)
        style.block_ticks(axes, layout, step, 0.6)
        axes.set_ylabel(label)
        style.legend_above(axes)
    return figure


def _ranges(
    axes: Axes, rows: Sequence[Mapping[str, Any]], number: int, label: str, aside: float = 0
) -> None:
    """Draw the mean, least and greatest pair of each block. aside: blocks to the right."""
    shade, marker = style.colour(number)
    low, mean, high = ([row[end] for row in rows] for end in ("min", "mean", "max"))
    at = [row["block"] + aside for row in rows]
    axes.vlines(at, low, high, color=shade, alpha=0.4, lw=2)
    axes.plot(at, mean, marker, color=shade, markersize=4, label=label)


@captioned(
    "How alike the heads of each block are: points are means over pairs, bars reach from the least "
    "to the most alike "
    "pair. What stands apart from the untrained network is what training added."
)
def before_training(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Figure:
    """A panel per measure.

    rows: measure, network, block, min, mean, max. labels: of the measures, for the axes.
    """
    measures = list(dict.fromkeys(row["measure"] for row in rows))
    blocks = sorted({row["block"] for row in rows})
    step = min(0.4, 2.1 / len(blocks))
    size, edges = (max(1.7, step * len(blocks)), 2.0), (0.7, 0.5, 1.85, 0.25)
    with style.grid(len(measures), size, (0.7, 0), edges, per_row=len(measures)) as (
        figure,
        places,
    ):
        for (axes, _, _), name in zip(places, measures, strict=True):
            for k, network in enumerate(("trained", "untrained")):
                of = [row for row in rows if (row["measure"], row["network"]) == (name, network)]
                _ranges(axes, of, k, f"{network}, mean of pairs", 0.24 * (k - 0.5))
            axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)
            ticks = [blocks[i] for i in style.ticks(len(blocks), step)]
            axes.set(xticks=ticks, xlabel="block", ylabel=style.wrapped(labels[name], size[1]))
        axes.vlines([], [], [], color="0.3", alpha=0.4, lw=2, label="least to greatest pair")
        style.legend_beside(axes)
    return figure


@captioned(
    "How alike heads are that were masked before the accuracy drops, at the drop, or kept: how far "
    "their pairs stand "
    "above the mean of all pairs of the same layers. The band holds 95 % of what groups give that "
    "are dealt out anew "
    "within each layer; a filled point is beyond it by p < .05 (Holm)."
)
def groups_of_pairs(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A row per pair of groups.

    rows: curve, group_a, group_b, pairs, above, chance_low, chance_high, p_holm.
    """
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    kinds = list(dict.fromkeys((row["group_a"], row["group_b"]) for row in rows))
    size, edges = (2.0, 0.28 * len(kinds) + 0.1), (1.25, 0.62, 0.35, 0.36)
    with style.grid(len(curves), size, (0.25, 0), edges, per_row=len(curves)) as (figure, places):
        for (axes, first, _), curve in zip(places, curves, strict=True):
            for row in (row for row in rows if row["curve"] == curve):
                y = kinds.index((row["group_a"], row["group_b"]))
                axes.hlines(y, row["chance_low"], row["chance_high"], color="0.8", linewidth=5)
                face = COLOURS[0] if significant(row["p_holm"]) else "white"
                axes.plot(
                    row["above"], y, "o", color=COLOURS[0], markerfacecolor=face, markersize=4
                )
                right: Any = {"ha": "right", "transform": axes.get_yaxis_transform()}
                axes.text(1.0, y - 0.12, f"{row['pairs']} ", fontsize=6, **right)
            style.name_rows(
                axes, [f"among {a}" if a == b else f"{a} with {b}" for a, b in kinds], first
            )
            axes.set_ylim(top=-0.6)
            axes.axvline(0, color="0.6", linewidth=0.6, zorder=0)
            axes.margins(x=0.25)
            axes.set_xlabel("similarity above the layers' mean\n(grey: chance; right: pairs)")
            axes.set_title(curve, pad=3)
    return figure


@captioned(
    "Heads as points: near points are alike. Only distances count, axes have no meaning. Distances "
    "are squeezed "
    "into a plane, so look up a striking pair in the table. Clusters are found in noise too."
)
def embedding(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """One panel of all heads if layers were compared, else one per layer. Markers are clusters."""
    groups = _compared(layout, columns["value"])
    together = len(groups) < len(layout.sites)
    points = columns["embedding"].double()
    cluster = columns["cluster"].long()
    side = 3.4 if len(groups) == 1 else 1.5
    size, edges = (side, side), (0.65, 0.5, 0.9 if together else 0.15, 0.3)
    shades = style.block_shades(layout)
    with style.grid(len(groups), size, (0.3, 0.3), edges, 5.0) as (
        figure,
        places,
    ):  # room for words
        for number, ((axes, first, last), sites) in enumerate(zip(places, groups, strict=True)):
            for flat in range(layout.offsets[sites[0]], layout.offsets[sites[-1] + 1]):
                _, head, site = list(layout)[flat]
                x, y = points[flat].tolist()
                kind = int(cluster[flat])
                shade = shades.to_rgba(site.block) if together else COLOURS[kind % len(COLOURS)]
                axes.plot(
                    x, y, MARKERS[kind % len(MARKERS)], color=shade, ms=5 if together else 4, mew=0
                )
                if not together:
                    axes.annotate(
                        str(head), (x, y), xytext=(2.5, 2.5), textcoords="offset points", fontsize=6
                    )
            _around_zero(axes, points)
            if len(groups) > 1:
                axes.set_title(
                    style.site_title(layout, sites[0]) if len(sites) == 1 else f"stage {number}",
                    pad=3,
                )
            axes.tick_params(labelbottom=last, labelleft=first)
        if together:
            wide, _ = style.grid_size(len(groups), size, (0.3, 0.3))
            style.block_bar(
                figure, shades, edges[0] + wide + 0.15, edges[1], side, "block (markers: clusters)"
            )
        text = f"embedding of {label}" + (
            "" if together else " (colours and markers: clusters, numbers: heads)"
        )
        figure.text(0.5, 0.06 / style.inches(figure)[1], text, ha="center", va="bottom", fontsize=8)
    return figure


def _around_zero(axes: Axes, points: Tensor) -> None:
    """Set limits around 0 that hold all points, the same both ways."""
    reach = 1.15 * max(points.abs().max().item(), 1e-6)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    axes.locator_params(nbins=4)


def _compared(layout: HeadLayout, value: Tensor) -> list[list[int]]:
    """Group sites whose heads were compared with each other."""
    first, sites = layout.offsets, range(len(layout.sites))
    starts = [s for s in sites if s == 0 or value[first[s - 1], first[s]].isnan()]
    return [list(range(*ends)) for ends in itertools.pairwise([*starts, len(sites)])]


class Group(NamedTuple):
    """N heads that were compared. points (N, 2); labels: their functions; cluster (N,)."""

    title: str
    points: Tensor
    labels: Sequence[str]
    cluster: Tensor


@captioned(
    "Heads as points: near points attend alike (Jensen-Shannon divergence). Colour: what the head "
    "does, by stated "
    "thresholds; shape: its cluster. The title has the silhouette of the clusters (1: far apart, "
    "0: touching) with the "
    "share of unclustered draws that reach it: above 0.05 the clusters may be a cut through one "
    "cloud."
)
def behaviours(groups: Sequence[Group]) -> Figure:
    """A panel per group, each with its own scale."""
    side = 3.2 if len(groups) == 1 else 1.9
    with style.grid(len(groups), (side, side), (0.5, 0.95), (0.65, 0.5, 1.25, 0.55)) as (
        figure,
        places,
    ):
        for (axes, first, _), group in zip(places, groups, strict=True):
            for (x, y), label, kind in zip(
                group.points.tolist(), group.labels, group.cluster.tolist(), strict=True
            ):
                axes.plot(
                    x,
                    y,
                    MARKERS[kind % len(MARKERS)],
                    color=LABEL_SHADES[label],
                    ms=5,
                    mec="0.3",
                    mew=0.4,
                )
            _around_zero(axes, group.points)
            axes.set(
                xlabel="first coordinate (scaling)", ylabel="second coordinate" if first else ""
            )
            axes.set_title(group.title, loc="left", pad=4, fontsize=7)
        for label in [
            label for label in LABEL_SHADES if any(label in group.labels for group in groups)
        ]:
            axes.plot([], [], "o", color=LABEL_SHADES[label], ms=5, mec="0.3", mew=0.4, label=label)
        for kind in range(1 + max(int(group.cluster.max()) for group in groups)):
            axes.plot(
                [],
                [],
                MARKERS[kind % len(MARKERS)],
                color="white",
                ms=5,
                mec="0.3",
                label=f"cluster {kind + 1}",
            )
        style.legend_beside(axes, 1.04)
    return figure
