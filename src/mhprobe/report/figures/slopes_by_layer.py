"""Slope of the loss along attention to each kind of key, block by block: a line per kind."""

import math
import textwrap
from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Figure, Names, canvas, colour, place, ticks

CAPTION = (
    "The mean size of the loss's slope along attention to each kind of key, a line per kind. Attention to a kind "
    "with small slopes could go elsewhere without effect (a no-op). Kinds whose slopes differ by less than a fifth "
    "in every block share a line. Slopes of exactly 0 have no place on the log scale."
)
ALIKE = 1.2  # times: on a log scale such lines hide one another
SUMS = ("special", "other")  # kinds pooled: a line each would hide which of them it is


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """The mean over a block's heads of every column "gradient_<kind>", on a log scale, which has no place for 0.

    Kinds whose lines lie on one another have one line, their mean, which is called by all of them.
    """
    kinds = [name for name in columns if name.startswith("gradient_") and columns[name].isfinite().any()]
    kinds = [name for name in kinds if name.removeprefix("gradient_") not in SUMS]
    blocks = [site.block for site in layout.sites]
    lines = {}
    for name in kinds:
        line = torch.stack([columns[name].double()[layout.span(i)].nanmean() for i in range(len(blocks))])
        lines[_title(name)] = line.where(line > 0, math.nan)
    places = {name: number for number, name in enumerate(lines)}  # the colour of a kind is that of it in the control
    wide = max(2.4, min(4.5, 0.35 * len(blocks)))
    together = coinciding(lines)
    texts = {names: "\n".join(textwrap.wrap(", ".join(names), 24)) for names in together}
    tall = max(2.2, 0.17 * sum(1 + text.count("\n") for text in texts.values()) + 0.2)
    with canvas((0.75 + wide + 1.6, tall + 0.7)) as figure:
        axes = place(figure, 0.75, 0.5, wide, tall)
        for kinds_of, line in together.items():
            number = places[kinds_of[0]]
            shade, marker = colour(number)
            dashes = "-" if number < 7 else "--"
            axes.plot(blocks, line, dashes, color=shade, marker=marker, markersize=3, label=texts[kinds_of])
        axes.set_yscale("log")
        axes.set_xticks([blocks[i] for i in ticks(len(blocks), wide / len(blocks))])
        axes.set(xlabel="block", ylabel="|dL/dA|, mean over heads (nats)")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def coinciding(lines: Mapping[str, Tensor]) -> dict[tuple[str, ...], Tensor]:
    """Lines by their names, those that nowhere differ by more than ``ALIKE`` times as one: their geometric mean."""
    groups: list[list[str]] = []
    for name, line in lines.items():
        apart = [(line / lines[group[0]]).log().abs().nan_to_num(0).max() for group in groups]
        same = [bool((line.isnan() == lines[group[0]].isnan()).all()) for group in groups]
        joins = [at for at in range(len(groups)) if same[at] and apart[at] < math.log(ALIKE)]
        groups[joins[0]].append(name) if joins else groups.append([name])
    return {tuple(group): torch.stack([lines[name] for name in group]).log().mean(0).exp() for group in groups}


def _title(name: str) -> str:
    return name.removeprefix("gradient_").replace("cls", "class token").replace("_", " ")
