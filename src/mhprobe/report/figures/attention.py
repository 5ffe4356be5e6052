"""Figures of where heads look: offsets, ranges, kinds of keys, relations between patches."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator, FuncFormatter
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names

_ENDS = (1, 2, 3, 5)  # powers of two at which colours may end: 32 times at most
_INSIDE = 0.95  # of the cells: a few that lie farther out would leave the others white
ALIKE = 1.2  # times: on a log scale such lines hide one another
# below the maps of offsets, and at their colour bar
POSITIONAL = (
    "head (framed: positional)",
    "share of the queries with a key there\nwhose largest weight is on it",
)
KEYS = {"cls": "CLS", "cls_to_cls": "CLS to CLS"}
SUMS = ("special", "other")  # kinds pooled: a line each would hide which of them it is


@captioned(
    "Where each head looks, relative to the query in the middle. A bright dot off the centre is a "
    "positional head "
    "(framed). Shares are of the queries that have a key at the offset; even attention gives each "
    "a few per cent."
)
def offset_maps(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    words: tuple[str, str] = POSITIONAL,
) -> Figure:
    """Map per head, layers down: of the queries with a key at an offset, the share with their argmax there.

    The centre of a map is the query itself. Offsets that no query reaches are white.
    words: below the maps, and at the colour bar.
    """
    exists = columns["exists"].double()
    # a share of few queries is noise: divide by a tenth of the most at least
    share = columns["counts"].double() / exists.maximum(0.1 * exists.amax((1, 2), keepdim=True))
    share = share.masked_fill(exists == 0, torch.nan)
    widest = max(site.num_heads for site in layout.sites)
    side = min(0.55, 6.6 / widest)  # inches per map
    left, bottom = 0.6, 0.5
    wide = max(1.2, side * widest)
    tall = style.matrix_height(layout, side)
    bar_tall = min(max(tall, 2.0), 3.0)
    top = bottom + max(tall, bar_tall)
    # even attention gives each offset a few per cent only: a square root keeps such patterns
    # visible
    norm = PowerNorm(0.5, 0, max(share.nan_to_num().max().item(), 1e-3))
    look: Any = {
        "cmap": style.shades("viridis", bad="white"),
        "norm": norm,
        "interpolation": "none",
    }
    with style.canvas((left + wide + 1.1, top + 0.3)) as figure:
        for axes, sites, heads in style.matrix_panels(figure, layout, left, top, side):
            maps = torch.stack([share[layout.span(s)] for s in sites])
            mosaic, (high, across) = _mosaic(
                maps, torch.cat([exists[layout.span(s)] for s in sites])
            )
            image = axes.imshow(mosaic.numpy(), aspect="auto", **look)
            positional = torch.stack([columns["positional"][layout.span(s)] for s in sites])
            for row, head in positional.nonzero().tolist():
                corner = (head * across - 0.5, row * high - 0.5)
                style.box(axes, corner, across - 1, high - 1, edgecolor=COLOURS[1], linewidth=1.2)
            shown = style.ticks(heads, side)
            axes.set_xticks(
                [(head + 0.5) * across - 1 for head in shown], [str(head) for head in shown]
            )
            blocks = [str(layout.sites[s].block) for s in sites]
            axes.set_yticks([(row + 0.5) * high - 1 for row in range(len(sites))], blocks)
            style.bare(axes)
        axes.set_xlabel(words[0])
        style.colour_bar(figure, image, left + wide + 0.15, top - bar_tall, bar_tall, words[1])
    return figure


def _mosaic(maps: Tensor, exists: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Tile maps (S, H, Y, X), cut to offsets that any query of ``exists`` (S * H, Y, X) reaches; the size of a tile."""
    ends = [int(exists.sum((0, axis)).nonzero().max()) for axis in (2, 1)]
    down, across = (
        slice(2 * (size // 2) - end, end + 1)
        for size, end in zip(maps.shape[2:], ends, strict=True)
    )
    padded = torch.nn.functional.pad(maps[:, :, down, across], (0, 1, 0, 1), value=torch.nan)
    rows, heads, height, width = padded.shape
    return padded.permute(0, 2, 1, 3).reshape(rows * height, heads * width), (height, width)


@captioned(
    "The share of attention within a radius of the key that a query looks at most, a line per "
    "head. The dashed line "
    "is even attention: heads above it are narrow, heads below it broad."
)
def range_profile(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Share of attention within a radius, over the radius in input pixels; dashed for even attention."""
    inside = columns["mass"].double().cumsum(1)
    even = columns["uniform_mass"].double().cumsum(1)
    edges = (0.6, 0.5, 0.4, 0.55)  # at the top a line for the legend
    with style.grid(len(layout.sites), (1.25, 1.15), (0.4, 0.62), edges, 4.0) as (figure, places):
        for number, (axes, first, last) in enumerate(places):
            span = layout.span(number)
            finite = columns["distances"][span][0].isfinite()
            radius = columns["distances"][span][0][finite].tolist()
            lines = axes.plot(
                radius,
                inside[span][:, finite].T.numpy(),
                color=COLOURS[0],
                linewidth=0.8,
                alpha=0.7,
            )
            (level,) = axes.plot(
                radius, even[span].mean(0)[finite].tolist(), "--", color=COLOURS[1], linewidth=1
            )
            for share in (0.5, 0.9):
                axes.axhline(share, color="0.6", linewidth=0.5, linestyle=":", zorder=0)
            axes.set(ylim=(0, 1.02), xlim=(0, max(radius[-1], 1e-9)))
            axes.set_yticks([0, 0.5, 0.9], ["0", "0.5", "0.9"] if first else [])
            axes.set_title(style.site_title(layout, number), pad=3)
            axes.set(
                xlabel="radius (input pixels)" if last else "",
                ylabel="mass within" if first else "",
            )
        at = (edges[0] / style.inches(figure)[0], 1)
        texts = ["a head, around its argmax key", "even attention"]
        figure.legend(
            [lines[0], level],
            texts,
            loc="upper left",
            bbox_to_anchor=at,
            ncols=2,
            borderaxespad=0.3,
        )
    return figure


@captioned(
    "Attention to each kind of key as a multiple of what even attention would give it: red more, "
    "blue less, white "
    "is as much. Cells beyond the ends of the colours (at most one in twenty) take the last colour. "
    "Kinds of which the "
    "model has no key are left out."
)
def kind_ratios(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """log2 of attention over even attention: red above it, blue below; grey where a head has no such key."""
    powers = _powers_of_even(columns)
    ratio = torch.stack(list(powers.values()))
    ratio = ratio.masked_fill(ratio.isneginf(), -_ENDS[-1])
    finite = ratio[ratio.isfinite()].abs()
    limit = _end_of_colours(finite)
    wide = min(7.5, max(2.5, 0.12 * layout.num_heads))
    tall = 0.2 * len(powers)
    with style.panel((wide, tall), (0.95, 0.5, 1.25, 0.2)) as (figure, axes):
        look: Any = {"cmap": style.shades("RdBu_r"), "norm": None, "vmin": -limit, "vmax": limit}
        image = style.picture(axes, ratio, interpolation="none", **look)
        for edge in layout.offsets[1:-1]:
            axes.axvline(edge - 0.5, color="black", linewidth=0.6)
        for row in range(1, len(powers)):
            axes.axhline(row - 0.5, color="white", linewidth=0.6)
        axes.set_yticks(
            range(len(powers)), [KEYS.get(kind, kind.replace("_", " ")) for kind in powers]
        )
        _number_blocks(axes, layout, wide)
        style.bare(axes)
        axes.set_xlabel("block (a column per head)")
        bar = style.colour_bar(figure, image, 0.95 + wide + 0.12, 0.5, tall)
        bar.ax.set_title("(and more)" if (finite > limit).any() else "", fontsize=6, pad=3)
        # a control may take other limits
        bar.locator = FixedLocator([*(-power for power in reversed(_ENDS)), 0, *_ENDS])
        bar.formatter = FuncFormatter(_multiple)
        grey = "\n(grey: no such key)" if ratio.isnan().any() else ""
        bar.set_label("attention as a multiple\nof even attention" + grey)
    return figure


def _powers_of_even(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return log2 of attention over even attention, (A,), by kind of key; without kinds that no head has."""
    powers = {}
    for name, even in columns.items():
        kind = name.removeprefix("uniform_")
        if kind == name:
            continue
        ratio = columns[kind] / even
        if not ratio.isnan().all():
            powers[kind] = ratio.double().log2()
    return powers


def _end_of_colours(sizes: Tensor) -> int:
    """Return the first power of two that holds nearly all ratios. sizes: absolute powers, finite."""
    most = sizes.quantile(_INSIDE).item() if len(sizes) else 0.0
    return next((end for end in _ENDS if most <= end), _ENDS[-1])


def _number_blocks(axes: Axes, layout: HeadLayout, wide: float) -> None:
    """Number blocks at the middle of their heads, as many as an axis of ``wide`` inches has room for."""
    at = style.middles(layout)
    fewest = min(site.num_heads for site in layout.sites)
    shown = style.ticks(len(at), fewest * wide / layout.num_heads)
    axes.set_xticks([at[site] for site in shown], [str(layout.sites[site].block) for site in shown])


def _multiple(
    power: float, _: int | None = None
) -> str:  # a lambda could not be pickled with its figure
    return f"{2**power:.0f}" if power >= 0 else f"1/{2**-power:.0f}"


@captioned(
    "The mean size of the loss's slope along attention to each kind of key, a line per kind. "
    "Attention to a kind "
    "with small slopes could go elsewhere without effect (a no-op). Kinds whose slopes differ by "
    "less than a fifth "
    "in every block share a line. Slopes of exactly 0 have no place on the log scale."
)
def slopes_by_layer(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """The mean over a block's heads of every column "gradient_<kind>", on a log scale."""
    count, lines = len(layout.sites), {}
    for column, values in columns.items():
        kind = column.removeprefix("gradient_")
        if kind != column and kind not in SUMS and values.isfinite().any():
            line = torch.stack([part.double().nanmean() for part in layout.split(values)])
            lines[kind.replace("cls", "class token").replace("_", " ")] = line.where(
                line > 0, math.nan
            )
    wide = max(2.4, min(4.5, 0.35 * count))
    together = coinciding(lines)
    texts = {names: "\n".join(textwrap.wrap(", ".join(names), 24)) for names in together}
    tall = max(2.2, 0.17 * sum(1 + text.count("\n") for text in texts.values()) + 0.4)
    with style.panel((wide, tall), (0.9, 0.5, 1.6, 0.2)) as (figure, axes):
        for kinds, line in together.items():
            number = list(lines).index(
                kinds[0]
            )  # the colour of a kind is that of it in the control
            shade, marker = style.colour(number)
            dashes = "-" if number < len(COLOURS) else "--"
            x = [site.block for site in layout.sites]
            axes.plot(x, line, dashes, color=shade, marker=marker, markersize=3, label=texts[kinds])
        axes.set(
            yscale="log",
            ylabel="slope of the loss along attention,\n|dL/dA|, mean over heads (nats)",
        )
        style.block_ticks(axes, layout, wide / count)
        style.legend_beside(axes, title="attention to")
    return figure


def coinciding(lines: Mapping[str, Tensor]) -> dict[tuple[str, ...], Tensor]:
    """Join lines, by their names, that nowhere differ by more than ``ALIKE`` times: geometric means."""
    groups: list[list[str]] = []
    for name, line in lines.items():
        apart = [(line / lines[group[0]]).log().abs().nan_to_num(0).max() for group in groups]
        same = [bool((line.isnan() == lines[group[0]].isnan()).all()) for group in groups]
        joins = [at for at in range(len(groups)) if same[at] and apart[at] < math.log(ALIKE)]
        groups[joins[0]].append(name) if joins else groups.append([name])
    return {
        tuple(group): torch.stack([lines[name] for name in group]).log().mean(0).exp()
        for group in groups
    }


@captioned(
    "Heads that look much at special keys (right) although it matters little (low) do nothing with "
    "them. The "
    "dashed lines are the references: even attention and equal slopes."
)
def special_keys(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Ratio of slopes over share of attention; heads without special keys are left out."""
    depth = [site.block for _, _, site in layout]
    shades = style.block_shades(layout)
    attention = columns["attention"].double()
    ratio = columns["value"].double()
    with style.panel((2.9, 2.3), (0.65, 0.5, 1.05, 0.2)) as (figure, axes):
        axes.scatter(
            attention.tolist(), ratio.tolist(), c=depth, norm=shades.norm, s=14, linewidths=0
        )
        axes.axhline(1, color="0.5", linewidth=0.8, linestyle="--", zorder=0)
        even = columns["uniform_attention"].double().mean().item()
        axes.axvline(even, color=COLOURS[1], linewidth=0.9, linestyle="--", zorder=0)
        axes.locator_params(axis="x", nbins=5)
        axes.set(xlim=(0, None), ylim=(0, None), ylabel=label)
        axes.set_xlabel("share of attention on special keys (dashed: even attention)")
        style.block_bar(figure, shades, 3.75, 0.5, 2.3)
    return figure


@captioned(
    "How often the key that a head attends to most is right for a relation between patches. "
    "Compare with the best "
    "fixed offset, which needs no content, and with an even draw, which is chance. The best of "
    "many dots is best by "
    "luck too: the ring is the head that is best on one half of the images, scored on the other "
    "(95 % over images)."
)
def relations(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """A panel per relation: accuracy in per cent of each head over its block."""
    titles, at = (
        names["relations"],
        torch.tensor(style.places_of_heads(layout, 0.6)),
    )  # none hides another
    blocks = torch.tensor([site.block for site in layout.sites])
    first = list(layout.offsets[:-1])
    edges = (0.55, 0.45, 0.3, 0.4)
    with style.grid(len(titles), (1.7, 1.7), (0.25, 0), edges, per_row=len(titles)) as (
        figure,
        places,
    ):
        for r, ((axes, leftmost, _), name) in enumerate(zip(places, titles, strict=True)):
            accuracy = 100 * columns["relations"][:, r]
            axes.plot(at, accuracy, ".", markersize=3.5, color=COLOURS[0], label="a head")
            for key, shade, text in (
                ("offset", COLOURS[1], "best fixed offset"),
                ("even", "0.5", "even draw"),
            ):
                axes.hlines(
                    100 * columns[key][first, r],
                    blocks - 0.4,
                    blocks + 0.4,
                    color=shade,
                    label=text,
                )
            score, low, high = (
                100 * columns[f"relations_{key}"][:, r] for key in ("held_out", "low", "high")
            )
            if len(chosen := score.isfinite().nonzero().flatten()):  # on other images
                look: Any = {
                    "fmt": "o",
                    "markerfacecolor": "none",
                    "color": COLOURS[2],
                    "markersize": 6,
                }
                scores = [of[chosen].tolist() for of in (score, low, high)]
                style.whiskers(axes, at[chosen], scores, label="best on other images", **look)
            axes.set(
                ylim=(-3, 103),
                xlabel="block",
                ylabel="largest weight on target (%)" if leftmost else "",
            )
            axes.set_title(name, pad=3)
            axes.tick_params(labelleft=leftmost)
        handles, texts = axes.get_legend_handles_labels()
        figure.legend(handles, texts, loc="upper center", ncols=4)
    return figure


@captioned(
    "How often each way to answer names a right patch, with 95 % intervals over test images; "
    "heads, offsets and probes "
    "were chosen on other images. A head that is no better than the best fixed offset has learned "
    "a place, and the "
    "even draw is chance."
)
def relation_scores(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Hit rates of ways to answer, by relation.

    rows: relation, way, who (or ""), score, low, high in [0, 1].
    """
    relations = list(dict.fromkeys(row["relation"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    step = max(0.5, 0.16 * len(ways))
    named = any(row["who"] for row in rows)
    with style.panel((3.2, step * len(relations)), (1.15, 0.5, 3.0 if named else 2.0, 0.25)) as (
        figure,
        axes,
    ):
        for row in rows:
            number = ways.index(row["way"])
            shade, marker = style.colour(number)
            y = relations.index(row["relation"]) + 0.8 * ((number + 0.5) / len(ways) - 0.5)
            label = row["way"] if row["relation"] == relations[0] else ""
            axes.plot(100 * row["score"], y, marker, color=shade, markersize=4.5, label=label)
            axes.hlines(y, 100 * row["low"], 100 * row["high"], color=shade, linewidth=1.4)
            axes.text(
                1.02,
                y,
                row["who"],
                fontsize=6,
                color=shade,
                va="center",
                transform=axes.get_yaxis_transform(),
            )
        for edge in range(1, len(relations)):
            axes.axhline(edge - 0.5, color="0.85", linewidth=0.6)
        axes.set(xlim=(0, 102), xlabel="queries answered rightly (%), 95 % interval over images")
        style.name_rows(axes, relations)
        axes.tick_params(axis="y", length=0)
        style.legend_beside(axes, 1.4 if named else 1.03)
    return figure
