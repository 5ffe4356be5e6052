"""One figure per kind of result: heads of a model, pairs of heads, masking curves.

Figures are made without pyplot: no window system, no global state. Colours can be told apart by colour-blind readers.
Where layers differ in their number of heads they are drawn stage by stage: a cell is a head, there are no empty ones.

Shapes: A heads of all sites, H heads of one site.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mhprobe.files import write
from mhprobe.heads import HeadLayout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
}
NOT_COMPARED = "0.85"
# Okabe & Ito's colours without yellow, in an order in which neighbours differ in lightness too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def per_head(layout: HeadLayout, columns: Mapping[str, Tensor], label: str) -> Figure:
    """A row per layer and a column per head; with "low" and "high" also all heads in order, with their intervals."""
    from matplotlib import rc_context

    value = columns["value"].double()
    groups = _even_groups(layout)
    cell = min(0.3, 5.0 / max(site.num_heads for site in layout.sites))  # inches
    left, bottom, top = 0.6, 0.5, 0.3
    gap = 0.4  # between stages: tick labels and a title
    cells = cell * len(layout.sites) + gap * (len(groups) - 1)
    tall = max(cells, 1.5)
    wide = cell * max(site.num_heads for site in layout.sites)
    bar_at, bar_tall = left + wide + 0.15, min(tall, 3.6)
    bar_wide = 1.0  # with its numbers and its label
    intervals = "low" in columns and "high" in columns
    ranked_at, ranked_wide = bar_at + bar_wide + 0.65, 2.9
    size = (ranked_at + ranked_wide + 0.15 if intervals else bar_at + bar_wide, bottom + tall + top)

    with rc_context(STYLE):
        figure = _blank(size)
        cmap, norm = _scale(value)
        y = bottom + (tall + cells) / 2
        for sites in groups:
            heads = layout.sites[sites[0]].num_heads
            y -= cell * len(sites)
            axes = _place(figure, left, y, cell * heads, cell * len(sites))
            image = axes.imshow(
                torch.stack([value[layout.span(i)] for i in sites]).numpy(), cmap=cmap, norm=norm, aspect="auto"
            )
            _cells(axes, len(sites), heads)
            axes.set_xticks(_ticks(heads, cell))
            axes.set_yticks(range(len(sites)), [str(layout.sites[i].block) for i in sites])
            axes.set_ylabel("block")
            if len(groups) > 1:
                axes.set_title(f"stage {layout.sites[sites[0]].stage}", loc="left", pad=3)
            y -= gap
        axes.set_xlabel("head")
        bar = figure.colorbar(image, cax=_place(figure, bar_at, bottom, 0.1, bar_tall))
        bar.outline.set_visible(False)
        bar.set_label(label)
        if intervals:
            _ranked(_place(figure, ranked_at, bottom, ranked_wide, bar_tall), columns, label)
    return figure


def pairwise(layout: HeadLayout, columns: Mapping[str, Tensor], label: str) -> Figure:
    """One head x head matrix per layer on a shared scale, or one over all heads where layers were compared too.

    A head and itself are grey: their 1 would flatten everything else. With "null", the chance level is drawn on the
    colour bar, as a band where it differs from pair to pair.
    """
    from matplotlib import rc_context

    value = columns["value"].double().clone()
    value.fill_diagonal_(torch.nan)
    blocks = [value[layout.span(i), layout.span(i)] for i in range(len(layout.sites))]
    across = value.isfinite().sum() > sum(block.isfinite().sum() for block in blocks)
    if across:
        panels, titles, per_row, side = [value], [""], 1, 5.0
    else:
        panels, titles = blocks, [_site_title(layout, i) for i in range(len(layout.sites))]
        per_row = min(len(panels), 6 if len(panels) > 8 else 4)
        side = 1.35
    deep = math.ceil(len(panels) / per_row)
    per_row = math.ceil(len(panels) / deep)  # as few gaps in the last row as can be: 6 panels are 2 x 3, not 4 + 2
    left, bottom, top, space = 0.55, 0.5, 0.3, 0.42
    wide, tall = per_row * side + (per_row - 1) * space, deep * side + (deep - 1) * space
    null = columns.get("null")
    chance = null[value.isfinite()].double() if null is not None else value.new_empty(0)
    bar_at = left + wide + (0.95 if len(chance) else 0.2)  # chance is written beside the bar
    bar_tall = min(tall, 3.0)

    with rc_context(STYLE):
        figure = _blank((bar_at + 1.0, bottom + tall + top))
        cmap, norm = _scale(torch.cat([value.flatten(), chance]))
        for number, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            row, column = divmod(number, per_row)
            heads = len(panel)
            axes = _place(
                figure, left + column * (side + space), bottom + tall - side - row * (side + space), side, side
            )
            image = axes.imshow(panel.numpy(), cmap=cmap, norm=norm)
            if heads <= 16:  # more would leave little but lines
                _cells(axes, heads, heads)
            axes.set_title(title, pad=3)
            if across:
                edges = layout.offsets[1:-1]
                for edge in edges:
                    axes.axhline(edge - 0.5, color="white", linewidth=0.8)
                    axes.axvline(edge - 0.5, color="white", linewidth=0.8)
                middles = [(a + b - 1) / 2 for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)]
                names = [str(site.block) for site in layout.sites]
                axes.set_xticks(middles, names)
                axes.set_yticks(middles, names)
                axes.tick_params(length=0)
            else:
                axes.set_xticks(_ticks(heads, side / heads))
                axes.set_yticks(_ticks(heads, side / heads))
            noun = "block" if across else "head"
            if number + per_row >= len(panels):
                axes.set_xlabel(noun)
            if column == 0:
                axes.set_ylabel(noun)
        bar = figure.colorbar(image, cax=_place(figure, bar_at, bottom + (tall - bar_tall) / 2, 0.1, bar_tall))
        bar.outline.set_visible(False)
        bar.set_label(label)
        if len(chance):
            _mark_chance(bar.ax, chance)
    return figure


def curves(rows: Sequence[Mapping[str, Any]], num_heads: int, chance: float | None = None) -> Figure:
    """Accuracy in per cent over the number of heads masked, all curves of a run, each with its 95 % band.

    rows: as masking curves give them. Drawn is the last split that occurs, the one to report. Of a random curve the
    mean over repeats is drawn, in grey. Dashed: the unmasked model. Dotted: chance.
    """
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    split = rows[-1]["split"]
    lines = _lines([row for row in rows if row["split"] == split])
    with rc_context(STYLE):
        figure = _blank((5.6, 3.2))
        axes = _place(figure, 0.55, 0.5, 3.6, 2.5)
        searched = [name for name in dict.fromkeys(row["curve"] for row in rows) if lines[name][0]["seed"] != "mean"]
        for name, points in lines.items():
            averaged = name not in searched
            colour, marker = ("0.45", "") if averaged else _colour(searched.index(name))
            heads = [point["heads_masked"] for point in points]
            accuracy, low, high = ([100 * point[key] for point in points] for key in ("accuracy", "low", "high"))
            if len(points) == 1:
                below, above = accuracy[0] - low[0], high[0] - accuracy[0]
                axes.errorbar(heads, accuracy, [[below], [above]], color=colour, marker=marker or "_", ms=4, label=name)
                continue
            axes.plot(heads, accuracy, color=colour, marker=marker, markersize=3, label=name)
            axes.fill_between(heads, low, high, color=colour, alpha=0.3 if averaged else 0.15, linewidth=0)
        unmasked = [point["accuracy"] for points in lines.values() for point in points if point["step"] == 0]
        if unmasked:
            axes.axhline(100 * unmasked[0], color="0.3", linestyle="--", linewidth=0.8, zorder=1, label="unmasked")
        if chance is not None:
            axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, zorder=1, label="chance")
        axes.set_xlim(-0.02 * num_heads, 1.02 * num_heads)
        axes.set_ylim(-2, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"heads masked (of {num_heads})")
        axes.set_ylabel(f"{split} accuracy (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.png`` (150 dpi) and ``<stem>.pdf``; the same figure gives the same bytes."""
    from matplotlib import rc_context

    paths = []
    for suffix, metadata in ((".png", {}), (".pdf", {"CreationDate": None})):
        data = io.BytesIO()
        with rc_context(STYLE):
            figure.savefig(data, format=suffix[1:], dpi=150, metadata=metadata)
        paths.append(write(stem.with_name(stem.name + suffix), data.getvalue()))
    return paths


def _lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Per curve the points to draw: the mean over repeats if there is one. Best kept first, as on the page."""
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["curve"], []).append(row)
    for name, points in curves.items():
        curves[name] = [point for point in points if point["seed"] == "mean"] or points
    mean = {name: sum(point["accuracy"] for point in points) / len(points) for name, points in curves.items()}
    return dict(sorted(curves.items(), key=lambda curve: -mean[curve[0]]))


def _colour(number: int) -> tuple[str, str]:
    """Colour and marker by the curve's place in the configuration: the same in every figure of a study."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def _ranked(axes: Axes, columns: Mapping[str, Tensor], label: str) -> None:
    """All heads from the largest value down, with their intervals."""
    value = columns["value"].double()
    order = value.argsort(descending=True, stable=True)
    value, low, high = value[order], columns["low"].double()[order], columns["high"].double()[order]
    rank = list(range(1, len(value) + 1))
    axes.vlines(rank, low.tolist(), high.tolist(), color="#56B4E9", linewidth=min(2.0, 120 / len(rank)))
    axes.plot(rank, value.tolist(), ".", color="#0072B2", markersize=3)
    axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    axes.set_xlim(0, len(rank) + 1)
    axes.set_xlabel("heads, ranked (bars: 95 % interval)")
    axes.set_ylabel(label)


def _mark_chance(axes: Axes, chance: Tensor) -> None:
    """The chance level on a colour bar: a band from its least to its greatest value, and a line at its mean."""
    low, mean, high = chance.min().item(), chance.mean().item(), chance.max().item()
    axes.axhspan(low, high, color="white", alpha=0.5, linewidth=0)
    axes.axhline(mean, color="white", linewidth=1.6)
    axes.axhline(mean, color="black", linewidth=0.8)
    axes.annotate(
        f"chance {mean:.2g}", (0, mean), xytext=(-3, 0), textcoords="offset points", ha="right", va="center", fontsize=7
    )


def _even_groups(layout: HeadLayout) -> list[list[int]]:
    """Runs of sites that can be drawn as one matrix: all of them, or those of one stage and width."""
    if len({site.num_heads for site in layout.sites}) == 1:
        return [list(range(len(layout.sites)))]
    groups: list[list[int]] = []
    for i, site in enumerate(layout.sites):
        before = layout.sites[groups[-1][0]] if groups else None
        if before is not None and (before.stage, before.num_heads) == (site.stage, site.num_heads):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _site_title(layout: HeadLayout, i: int) -> str:
    site = layout.sites[i]
    return f"block {site.block}" if layout.num_stages == 1 else f"stage {site.stage}, block {site.block}"


def _scale(values: Tensor) -> tuple[Any, Any]:
    """Colours over the range of the finite values: in one direction, or away from 0 where there are both signs."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    finite = values[values.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 1.0)
    if low < 0 < high:
        high = max(-low, high)
        cmap, low = colormaps["RdBu_r"], -high
    else:
        cmap = colormaps["viridis"]
    if low == high:  # one value only: show it against 0
        low, high = (min(low, 0), max(high, 0)) if low else (0, 1)
    return cmap.with_extremes(bad=NOT_COMPARED), Normalize(low, high)


def _ticks(count: int, cell: float) -> list[int]:
    """Every index where there is room for a number, otherwise every 2nd, 4th, ..."""
    step = 1
    while step * cell < 0.17:
        step *= 2
    return list(range(0, count, step))


def _cells(axes: Axes, rows: int, columns: int) -> None:
    """Thin white lines between cells, and no frame."""
    axes.set_xticks([i - 0.5 for i in range(1, columns)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)


def _blank(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=size)


def _place(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches: cells of all panels come out equally large."""
    wide, tall = figure.get_size_inches()
    return figure.add_axes((left / wide, bottom / tall, width / wide, height / tall))
