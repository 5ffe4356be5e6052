"""Activation patching against its estimates from slopes: every head a point."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Axes, Figure, Names, canvas, place

_NAMED = 3  # heads furthest from the line

CAPTION = (
    "What patching each head really does (across) against what slopes say it would (up). On the grey line both agree. "
    "Left: AtP, with its sign. Right: sizes, AtP (dots) and GradDrop (crosses). Colour: the block, from dark to light. "
    "The heads furthest off are named, block:head. A rank correlation of 0 would be chance."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Return the figure.

    columns: "value" and "atp", "size", "atp_size" and "graddrop" (A,); without estimates the values alone.
    """
    with canvas((6.0, 2.8)) as figure:
        left, right = place(figure, 0.65, 0.5, 2.0, 1.9), place(figure, 3.4, 0.5, 2.0, 1.9)
        block = torch.tensor([site.block for _, _, site in layout])
        estimate = columns.get("atp", columns["value"])
        _points(left, columns["value"], estimate, block, "o")
        _name(left, layout, columns["value"], estimate)
        _titled(left, "AtP", columns, "atp")
        left.set(xlabel="share restored, exact", ylabel="estimated")
        for name, marker in (("atp_size", "o"), ("graddrop", "x")):
            _points(right, columns["size"], columns.get(name, columns["size"]), block, marker)
        _titled(right, "x GradDrop", columns, "graddrop")
        right.set_xlabel("mean |effect|, exact")
    return figure


def _points(axes: Axes, x: Tensor, y: Tensor, block: Tensor, marker: str) -> None:
    from matplotlib import colormaps

    both = torch.cat([x, y]).double()
    ends = [float(both.min()), float(both.max())]
    axes.plot(ends, ends, color="0.6", linewidth=0.6, zorder=0)
    axes.scatter(x, y, c=block, cmap=colormaps["viridis"], s=9, marker=marker, linewidths=0.7 if marker == "x" else 0)
    axes.locator_params(nbins=4)


def _name(axes: Axes, layout: HeadLayout, x: Tensor, y: Tensor) -> None:
    for head in (y - x).abs().argsort(descending=True)[:_NAMED].tolist():
        _, index, site = list(layout)[head]
        right = x[head] < (x.min() + x.max()) / 2
        axes.annotate(
            f"{site.block}:{index}", (float(x[head]), float(y[head])), xytext=(3 if right else -3, 0),
            textcoords="offset points", fontsize=6, va="center", ha="left" if right else "right",
        )  # fmt: skip


def _titled(axes: Axes, name: str, columns: Mapping[str, Tensor], key: str) -> None:
    if f"spearman_{key}" not in columns:
        return
    rho, low, high = (float(columns[f"spearman_{key}{end}"].flatten()[0]) for end in ("", "_low", "_high"))
    axes.set_title(f"{name}: rank corr. {rho:.2f} [{low:.2f}, {high:.2f}]", fontsize=7, loc="left", pad=4)
