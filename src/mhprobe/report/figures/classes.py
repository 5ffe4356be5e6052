"""Figures of a number per class: heads or masking steps down, classes across."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mhprobe.errors import short
from mhprobe.heads import HeadLayout
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import NAMELESS, Figure, Names
from mhprobe.stats.significance import lower, significant

LONGEST = 14  # letters of a class's name
SPEAKERS = 3  # heads that speak against a class, below the figure


def class_matrix(
    layout: HeadLayout,
    value: Tensor,
    marked: Tensor,
    classes: Sequence[str],
    text: str,
    below: Sequence[str] = (),
) -> Figure:
    """One row per head, blocks parted by white lines, one column per class.

    value, marked: (A, C); a dot stands where ``marked``. classes: what stands below each column.
    text: beside the colour bar. below: lines of words at the foot, the first one lowest.
    """
    heads, count = value.shape
    row = max(0.055, min(0.16, 6.0 / heads))  # inches
    column = min(0.42, max(0.1, 4.0 / count))
    wide = max(column * count, 2.4)
    tall = max(row * heads, 1.8)
    bar_tall = min(tall, 3)
    text = style.wrapped(text, bar_tall)
    edges = (1.0, 1.05 + 0.16 * len(below), 1.15 + 0.15 * text.count("\n"), 0.15)
    with style.panel((wide, tall), edges) as (figure, axes):
        image = style.picture(axes, value, interpolation="nearest")
        down, across = marked.nonzero().unbind(1)
        axes.plot(across.tolist(), down.tolist(), "o", color="black", markersize=min(3.0, 20 * row))
        for edge in layout.offsets[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=1.5)
        axes.set_yticks(style.middles(layout), layout.site_names)
        axes.set_ylabel("heads, 0 on top in each block")
        shown = range(0, count, max(1, round(0.13 / column)))
        axes.set_xticks(shown, [classes[number] for number in shown], rotation=45, ha="right")
        style.bare(axes)
        for line, words in enumerate(below):
            figure.text(
                0.1 / style.inches(figure)[0],
                (0.1 + 0.16 * line) / style.inches(figure)[1],
                words,
                fontsize=7,
            )
        style.colour_bar(
            figure, image, 1.15 + wide, edges[1] + (tall - bar_tall) / 2, bar_tall, text
        )
    return figure


@captioned(
    "How much accuracy each class loses (red) or gains (blue) without each head. A class has few "
    "images, so "
    "single cells jump by chance: trust rows and columns that repeat, and the interval in the "
    "table of the "
    "measure. A dot: significant (McNemar within the class, Holm over all cells, 5 %). Beside a "
    "class stands "
    "its accuracy with all heads."
)
def by_class(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """One row per head, sites parted by white lines, one column per class; from the column "by_class" (A, C)."""
    value = columns["by_class"].double()
    classes = [
        short(name, LONGEST) for name in names.get("by_class", [*map(str, range(value.shape[1]))])
    ]
    if "class_accuracy" in columns:
        base = columns["class_accuracy"][0]
        classes = [
            f"{name} ({100 * share:.0f} %)" for name, share in zip(classes, base, strict=True)
        ]
    p = columns.get("class_p_holm", torch.full_like(value, torch.nan))
    return class_matrix(layout, value, significant(p), classes, "drop of accuracy within the class")


@captioned(
    "What each head writes into a class's logit on images of that class, above the mean over "
    "classes: red speaks for "
    "the class, blue against it. A dot marks heads that speak against a class by more than chance "
    "(Holm over all "
    "cells, 5 %); those that do so most are named below. It is the direct path only: what a head "
    "does by way of later "
    "blocks is not in it."
)
def logits(
    layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS
) -> Figure:
    """One row per head, sites parted by white lines, one column per class; from the columns "own", "own_p" (A, C)."""
    value = columns["own"].double()
    p = columns["own_p"].double()
    classes = [
        short(name, LONGEST) for name in names.get("own", [*map(str, range(value.shape[1]))])
    ]
    against = lower(p, value)
    worst = value.masked_fill(~against, 0).flatten().argsort()[: min(SPEAKERS, int(against.sum()))]
    cells = (divmod(cell, value.shape[1]) for cell in worst.tolist())
    words = [
        f"{layout.name_of(head)} against {classes[at]}: {value[head, at]:.2g}" for head, at in cells
    ]
    return class_matrix(
        layout, value, against, classes, "write into the class's logit", words[::-1]
    )  # worst on top


@captioned(
    "The drop of accuracy within each class (red) or its gain (blue) as heads are masked, step by "
    "step. A dot: "
    "significant on the same images (McNemar within the class, Holm over all cells, 5 %). Beside a "
    "class stands its "
    "accuracy with all heads. A class whose column turns red early needs the first heads that go."
)
def classes_at_steps(
    accuracy: Tensor, sure: Tensor, heads_masked: Sequence[int], names: Sequence[str]
) -> Figure:
    """Cost of a masking curve by class.

    accuracy: (K, C), step 0 unmasked. sure: (K, C). heads_masked: of each step.
    """
    drop = 100 * (accuracy[:1] - accuracy)[1:].double()
    deep, classes = drop.shape
    wide_cell = max(0.24, min(0.42, 6.5 / classes))
    tall_cell = max(0.08, min(0.24, 5.0 / max(deep, 1)))
    wide, tall = wide_cell * classes, max(tall_cell * deep, 0.8)
    whole = zip(names, accuracy[0].tolist(), strict=True)
    labels = [f"{short(name, LONGEST)} ({100 * base:.0f} %)" for name, base in whole]
    below = 0.25 + 0.065 * max(map(len, labels))  # inches: names stand upright
    with style.panel((wide, tall), (0.75, below, 1.0, 0.2)) as (figure, axes):
        image = style.picture(axes, drop)
        style.part_cells(axes, deep, classes)
        down, across = sure[1:].nonzero().unbind(1)
        axes.plot(across.tolist(), down.tolist(), ".", color="black", markersize=3)
        axes.set_xticks(range(classes), labels, rotation=90)
        shown = style.ticks(deep, tall / max(deep, 1))
        axes.set_yticks(shown, [str(heads_masked[1:][k]) for k in shown])
        axes.set_ylabel("heads masked")
        style.colour_bar(figure, image, 0.75 + wide + 0.15, below, tall, "drop (points)")
    return figure
