"""Figures of a value of every head: matrices of layers by heads, heads against depth, and heads as points."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from matplotlib.patches import Patch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.pruned import LABEL_SHADES
from mhprobe.report.figures.style import COLOURS, NAMELESS, Axes, Figure, Names
from mhprobe.stats.significance import significant

# columns that a head is read against, and their colours
REFERENCES = {"chance": "0.35", "null": "0.35", "uniform": "0.35", "random_init": "#D55E00"}
NAMED = 3  # heads at either end, as block.head
TestedP = Literal["p", "p_holm"]
LEVEL = 0.01  # of the test of each head
_LEVELS = {
    "uniform": ("even attention", "--", COLOURS[1]),
    "chance": ("chance", "--", COLOURS[1]),
    "random_init": ("random initialisation", ":", COLOURS[2]),
}
FURTHEST = 3  # heads furthest from the line


@captioned(
    "A square per head, blocks from input to output. Beside, where there is an interval or a "
    "reference, the heads "
    "in order, the first and the last by name (block.head): a bar is the 95 % interval over "
    "images, the line what "
    "chance, even attention or a freshly initialised network gives. Heads whose intervals overlap are not told "
    "apart.",
    draws_control=True,  # from the column "random_init"
)
def per_head(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """A row per layer and a column per head; beside it all heads in order, if there is an interval or a reference.

    "low" and "high" are the interval; a column of ``REFERENCES`` is what a
    head is read against.
    """
    value = columns["value"].double()
    widest = max(site.num_heads for site in layout.sites)
    cell = min(0.3, 5.0 / widest)  # inches
    left, bottom, top = 0.6, 0.62, 0.3
    grid_tall = style.matrix_height(layout, cell)
    tall = max(grid_tall, 1.5)
    bar_at, bar_tall = left + cell * widest + 0.15, min(tall, 3.6)
    ranked = {"low", "high"} <= set(columns) or any(name in columns for name in REFERENCES)
    label = style.wrapped(label, bar_tall)
    bar_wide = 1.0 + 0.15 * label.count("\n")  # with its numbers and its label
    ranked_at, ranked_wide = bar_at + bar_wide + 0.65, 2.9
    with style.canvas(
        (ranked_at + ranked_wide + 0.15 if ranked else bar_at + bar_wide, bottom + tall + top)
    ) as figure:
        cmap, norm = style.scale(value, log=True)
        top_at = bottom + (tall + grid_tall) / 2
        image = style.head_matrix(figure, layout, value, left, top_at, cell, cmap=cmap, norm=norm)
        style.colour_bar(figure, image, bar_at, bottom, bar_tall, label)
        if ranked:
            _ranked(
                style.axes_at(figure, ranked_at, bottom, ranked_wide, bar_tall),
                layout,
                columns,
                label,
            )
    return figure


def _called(name: str) -> str:
    """Return a reference's name in a legend."""
    return "even attention" if name == "uniform" else name.replace("_", " ")


def _ranked(axes: Axes, layout: HeadLayout, columns: Mapping[str, Tensor], label: str) -> None:
    """Draw all heads from the largest value down, with intervals and references."""
    value = columns["value"].double()
    order = value.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
    rank = list(range(1, len(value) + 1))
    stroke = min(2.0, 120 / len(rank))
    text = "heads, ranked"
    if "low" in columns and "high" in columns:
        low = columns["low"].double()[order]
        high = columns["high"].double()[order]
        axes.vlines(rank, low.tolist(), high.tolist(), color="#56B4E9", linewidth=stroke)
        text = "heads, ranked (bars: 95 % interval)"
    axes.plot(rank, value[order].tolist(), ".", color="#0072B2", markersize=3)
    for name in REFERENCES:
        if name in columns:
            level = columns[name].double().expand(len(value))[order].tolist()
            axes.plot(rank, level, "_", color=REFERENCES[name], markersize=4, label=_called(name))
    if axes.get_legend_handles_labels()[0]:
        style.legend_above(axes)
    if not {"chance", "null", "uniform"} & set(
        columns
    ):  # else 0 may be far away from the reference
        axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    axes.set_xlim(0, len(rank) + 1)
    names = [f"{site.block}.{head}" for _, head, site in layout]
    ranked = [names[flat] for flat in order.tolist() if value[flat].isfinite()]
    if some := min(NAMED, len(ranked) // 2):
        text += f"\nhighest {', '.join(ranked[:some])}; lowest {', '.join(ranked[::-1][:some])}"
    axes.set(xlabel=text, ylabel=label)


@captioned(
    "Accuracy in per cent when the head is switched off; red where it falls. A frame: the change "
    "is significant. "
    "Without a frame a head cannot be told from one that does nothing."
)
def accuracy_without(
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names = NAMELESS,
    *,
    p: TestedP = "p_holm",
) -> Figure:
    """From "accuracy" () of the whole model and "drop" (A,).

    p: the column that is tested against ``LEVEL``.
    """
    drop = 100 * columns["drop"].double()
    whole = 100 * columns["accuracy"].double().flatten()[0]
    cell = max(0.22, min(0.42, 8.0 / max(site.num_heads for site in layout.sites)))
    left, tall = 0.6, style.matrix_height(layout, cell)
    wide = cell * max(site.num_heads for site in layout.sites)
    bar_tall = min(max(tall, 1.6), 3.0)
    top = 0.5 + max(tall, bar_tall)
    with style.canvas((max(left + wide + 1.1, 4.2), top + 0.45)) as figure:
        cmap, norm = style.scale(drop)
        image = style.head_matrix(figure, layout, drop, left, top, cell, cmap=cmap, norm=norm)
        for axes, sites in zip(list(figure.axes), style.even_groups(layout), strict=True):
            for row, site in enumerate(sites):
                span = layout.span(site)
                for head, (lost, sure) in enumerate(
                    zip(drop[span], columns[p][span] < LEVEL, strict=True)
                ):
                    text = f"{whole - lost:.1f}"
                    axes.text(
                        head, row, text, ha="center", va="center", fontsize=min(6.5, 15 * cell)
                    )
                    if sure:
                        style.box(axes, (head - 0.46, row - 0.46), 0.92, 0.92, linewidth=1.1)
            style.colour_text(axes)
        title = (
            f"all heads: {whole:.1f} %. framed: {'p, Holm,' if p == 'p_holm' else 'p'} < {LEVEL:g}"
        )
        figure.text(
            left / style.inches(figure)[0], 1 - 0.12 / (top + 0.45), title, va="top", fontsize=8
        )
        style.colour_bar(
            figure, image, left + wide + 0.15, top - bar_tall, bar_tall, "accuracy lost (points)"
        )
    return figure


@captioned(
    "Heads of each block from the highest to the lowest value of the left matrix; right the other "
    "value of the same "
    "heads in the same order. Small numbers are heads. If both go together, the right one fades "
    "from left to right."
)
def sorted_heads(layout: HeadLayout, values: Mapping[str, Tensor]) -> Figure:
    """Heads of every layer sorted by the first of some values. values: (A,) each by their label."""
    by, first_value = next(iter(values.items()))
    heads = max(site.num_heads for site in layout.sites)
    deep = len(layout.sites)
    cell = max(0.14, min(0.28, 3.2 / heads))
    size, edges = (cell * heads, cell * deep), (0.55, 0.45, 0.95, 0.4 + max(0.0, 1.2 - cell * deep))
    parts = [part.double().nan_to_num(-torch.inf) for part in layout.split(first_value)]
    orders = [part.argsort(descending=True, stable=True) for part in parts]
    with style.grid(len(values), size, (0.95, 0), edges, per_row=len(values)) as (figure, places):
        for (axes, first, _), (label, value) in zip(places, values.items(), strict=True):
            rows = [
                part[order]
                for part, order in zip(layout.split(value.double()), orders, strict=True)
            ]
            grid = pad_sequence(rows, batch_first=True, padding_value=torch.nan)
            image = style.picture(axes, grid, cmap=style.scale(grid)[0].with_extremes(bad="white"))
            style.part_cells(axes, deep, heads)
            for row, order in enumerate(orders if cell >= 0.2 else ()):
                for column, head in enumerate(order.tolist()):
                    axes.text(column, row, str(head), ha="center", va="center", fontsize=5)
            style.colour_text(axes)
            across, down = (f"heads, by {by}", "block") if first else ("the same heads", "")
            axes.set(xticks=[], xlabel=across, ylabel=down)
            axes.set_yticks(
                range(deep), [str(site.block) for site in layout.sites] if first else [""] * deep
            )
            axes.set_title(label, pad=4)
            style.bar_beside(axes, image, gap=0.08)
    return figure


@captioned(
    "What each head does, by stated thresholds: a mark per function, grey (mixed) where no rule "
    "holds. A head may have "
    "several. A label says what a head attends to, not that the network needs it."
)
def functions(
    layout: HeadLayout, functions: Mapping[str, Tensor], rules: Mapping[str, str]
) -> Figure:
    """A grid of layers by heads with a mark per function that a head has, and "mixed" for heads without one.

    functions: (A,) bool by name; the legend counts the heads of each. rules: the condition of each,
    and of "mixed".
    """
    heads = max(site.num_heads for site in layout.sites)
    deep = len(layout.sites)
    marks = {**functions, "mixed": ~torch.stack(list(functions.values())).any(0)}
    wide_cell = max(0.26, min(0.5, 6.0 / heads))
    left, tall = 0.55, max(0.3 * deep, 0.32 * len(marks))
    with style.panel((wide_cell * heads, tall), (left, 0.45, 3.0, 0.2)) as (figure, axes):
        for flat, (row, head, _) in enumerate(layout):
            has = [LABEL_SHADES[name] for name, has_A in marks.items() if has_A[flat]]
            for part, shade in enumerate(has):  # side by side
                style.box(
                    axes,
                    (head - 0.5 + part / len(has), row - 0.5),
                    1 / len(has),
                    1,
                    linewidth=0,
                    color=shade,
                )
            style.box(axes, (head - 0.5, row - 0.5), 1, 1, edgecolor="white", linewidth=1.5)
        texts = {
            name: f"{name} ({int(has_A.sum())})\n  {rules[name]}" for name, has_A in marks.items()
        }
        handles = [Patch(color=LABEL_SHADES[name], label=text) for name, text in texts.items()]
        axes.set(
            xlim=(-0.5, heads - 0.5),
            xticks=style.ticks(heads, wide_cell),
            xlabel="head",
            ylabel="block",
        )
        style.name_rows(axes, [str(site.block) for site in layout.sites])
        axes.spines[:].set_visible(False)
        style.legend_beside(axes, handles=handles, title="function (heads)")
    return figure


@captioned(
    "A dot per head with its 95 % interval over images, often shorter than the dot, and a bar at "
    "the mean of its "
    "block. The dashed line is what even attention or chance would give, "
    "the dotted line a freshly initialised network: dots on a line say nothing about training.",
    draws_control=True,  # from the column "random_init"
)
def by_depth(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Dots over blocks.

    The means of "uniform" or "chance" in each layer are a dashed line, of "random_init" dotted.
    """
    value = columns["value"].double()
    blocks = [site.block for site in layout.sites]
    step = min(0.45, 5.5 / len(blocks))
    edges = (0.75, 0.5, 1.75 if "random_init" in columns else 1.45, 0.2)
    with style.panel((max(1.6, step * len(blocks)), 2.3), edges) as (figure, axes):
        at = _side_by_side(layout)
        axes.plot(at, value.tolist(), ".", color=COLOURS[0], ms=4, alpha=0.7, label="head")
        if {"low", "high"} <= set(columns):
            low = columns["low"].double().tolist()
            high = columns["high"].double().tolist()
            axes.vlines(at, low, high, color=COLOURS[0], linewidth=0.8, alpha=0.7)
        left = [block - 0.4 for block in blocks]
        right = [block + 0.4 for block in blocks]
        means = [part.mean() for part in layout.split(value)]
        axes.hlines(means, left, right, color="black", linewidth=1.2, label="mean of the block")
        _levels_of_blocks(axes, layout, columns)
        style.block_ticks(axes, layout, step, 0.6)
        axes.set_ylabel(label)
        style.legend_beside(axes, handlelength=1.4)
    return figure


def _side_by_side(layout: HeadLayout) -> list[float]:
    """(A,) places on an axis of blocks: equal heads of a block do not hide each other."""
    return [
        site.block + (head - (site.num_heads - 1) / 2) / max(site.num_heads, 4) * 0.6
        for _, head, site in layout
    ]


def _levels_of_blocks(axes: Axes, layout: HeadLayout, columns: Mapping[str, Tensor]) -> None:
    """Draw what chance, even attention or an untrained network gives: a step per block at its mean."""
    edges = [edge for site in layout.sites for edge in (site.block - 0.5, site.block + 0.5)]
    for name, (title, dashes, shade) in _LEVELS.items():
        if name not in columns:
            continue
        levels = [part.double().mean().item() for part in layout.split(columns[name])]
        steps = [level for level in levels for _ in ("left", "right")]
        axes.plot(edges, steps, dashes, color=shade, linewidth=1.2, label=title)


@captioned(
    "How many heads change accuracy by how much when they alone are switched off. Left of 0 the "
    "model is better "
    "without the head. Dark: significant (McNemar, Holm over all heads, 5 %).",
    # an untrained network at chance loses nothing without a head; the table has it
    draws_control=True,
)
def drop_histogram(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Heads over "drop" in points of accuracy, in bins of equal width around 0; those with "p_holm" < 0.05 dark."""
    drop = 100 * columns["drop"].double()
    sure = significant(columns["p_holm"])
    width = max(
        float(drop.max() - drop.min()) / 20, 0.1
    )  # heads that change nothing are a bar, too
    first = int(float(drop.min()) // width)
    last = int(float(drop.max()) // width) + 1
    edges = [number * width for number in range(first, last + 1)]
    with style.panel((3.4, 1.95), (0.55, 0.5, 0.25, 0.3)) as (figure, axes):
        shares, texts = (
            [drop[sure].tolist(), drop[~sure].tolist()],
            ["significant", "not told from no change"],
        )
        axes.hist(shares, bins=edges, stacked=True, color=[COLOURS[0], "#A6CEE3"], label=texts)
        axes.axvline(0, color="0.3", linewidth=0.8, linestyle="--")
        axes.set(
            xlabel="accuracy lost without the head (points)",
            ylabel=f"heads (of {layout.num_heads})",
        )
        style.whole_ticks(axes.yaxis)
        style.legend_above(axes, right=True, borderaxespad=0.1)
    return figure


@captioned(
    "Accuracy of the whole model when a block keeps one head. The filled point was chosen on "
    "validation images; "
    "the open one is the best on test, which flatters. The dashed line is the whole model: a block "
    "on it has one "
    "head that suffices.",
    draws_control=True,  # an untrained network is at chance with any heads; the table has it
)
def sufficiency(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Per site the accuracy (%) with each single head, the chosen one with its 95 % interval, and the whole model's."""
    value, low, high = (
        100 * columns[name].double() for name in ("accuracy", "accuracy_low", "accuracy_high")
    )
    step = min(0.42, 7.0 / len(layout.sites))
    with style.panel((max(2.2, step * len(layout.sites)), 2.55), (0.6, 0.5, 1.6, 0.15)) as (
        figure,
        axes,
    ):
        sites = torch.tensor([site.block for _, _, site in layout])
        best, chosen = (columns[name].bool() for name in ("test_best", "chosen"))
        axes.plot(
            sites, value, ".", color="0.7", markersize=4, clip_on=False, label="each head alone"
        )
        ring: Any = {"markersize": 7, "markerfacecolor": "none", "markeredgecolor": COLOURS[1]}
        axes.plot(sites[best], value[best], "o", clip_on=False, label="best on test", **ring)
        if chosen.any():
            dots: Any = {"fmt": "o", "color": COLOURS[0], "markersize": 4, "linewidth": 1}
            ends = [of[chosen].tolist() for of in (value, low, high)]
            style.whiskers(axes, sites[chosen], ends, label="chosen on\nvalidation (95 %)", **dots)
        style.level(axes, 100 * columns["whole"].item(), "all heads")
        style.block_ticks(axes, layout, step, 0.6)
        axes.set(xlabel="block that keeps one head", ylabel="accuracy (%)")
        style.legend_beside(axes)
    return figure


@captioned(
    "What patching each head really does (across) against what slopes say it would (up). On the "
    "grey line both agree. "
    "Left: AtP, with its sign. Right: sizes, AtP (dots) and GradDrop (crosses). Colour: the block, "
    "from dark to light. "
    "The heads furthest off are named, block:head. Rank correlations (95 % interval over heads) of "
    "0 would be chance."
)
def patching(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """Exact effects against estimates: "value" and "atp", "size", "atp_size" and "graddrop" (A,), if there are any."""
    with style.grid(2, (2.0, 1.9), (0.75, 0), (0.65, 0.5, 0.6, 0.4)) as (figure, places):
        (left, *_), (right, *_) = places
        blocks: Any = [site.block for _, _, site in layout]
        dots: Any = {"linewidths": 0}
        crosses: Any = {"linewidths": 0.7, "marker": "x"}
        marks = (
            (left, "value", "atp", dots),
            (right, "size", "atp_size", dots),
            (right, "size", "graddrop", crosses),
        )
        for axes, exact, name, look in marks:
            x, y = columns[exact], columns.get(name, columns[exact])
            style.line_of_equality(axes, x, y)
            axes.scatter(x, y, c=blocks, s=9, **look)
            axes.locator_params(nbins=4)
        x, y = columns["value"], columns.get("atp", columns["value"])
        for head in (y - x).abs().argsort(descending=True)[:FURTHEST].tolist():
            _, index, site = list(layout)[head]
            shift, side = (3, "left") if x[head] < (x.min() + x.max()) / 2 else (-3, "right")
            place: Any = {
                "xytext": (shift, 0),
                "textcoords": "offset points",
                "ha": side,
                "va": "center",
            }
            left.annotate(
                f"{site.block}:{index}", (float(x[head]), float(y[head])), fontsize=6, **place
            )
        for axes, text, key in ((left, "AtP", "atp"), (right, "x GradDrop", "graddrop")):
            if f"spearman_{key}" in columns:
                rho, low, high = (
                    float(columns[f"spearman_{key}{end}"].flatten()[0])
                    for end in ("", "_low", "_high")
                )
                axes.set_title(
                    f"{text}: rank corr. {rho:.2f} [{low:.2f}, {high:.2f}]",
                    fontsize=7,
                    loc="left",
                    pad=4,
                )
        left.set(xlabel="share restored, exact", ylabel="estimated")
        right.set_xlabel("mean |effect|, exact")
    return figure
