"""Hit rates of heads on relations between patches: every head, the best fixed offset, an even draw."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, Axes, Figure, Names, canvas, colour, place

CAPTION = (
    "How often the key that a head attends to most is right for a relation between patches. Compare with the best "
    "fixed offset, which needs no content, and with an even draw, which is chance. The best of many dots is best by "
    "luck too: the ring is the head that is best on one half of the images, scored on the other, with a 95 % interval."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """A panel per relation: accuracy in per cent of each head over its layer."""
    titles = names["relations"]
    sites = torch.tensor([number for number, _, _ in layout], dtype=torch.float64)
    wide, tall, gap = 1.7, 1.7, 0.25
    with canvas((0.6 + len(titles) * (wide + gap), tall + 0.85)) as figure:
        for r, name in enumerate(titles):
            axes = place(figure, 0.55 + r * (wide + gap), 0.45, wide, tall)
            accuracy = 100 * columns["relations"][:, r]
            # heads of a layer side by side, so that none hides another
            spread = torch.cat([torch.linspace(-0.25, 0.25, site.num_heads).double() for site in layout.sites])
            axes.plot(sites + spread, accuracy, ".", markersize=3.5, color=colour(0)[0], label="a head")
            first = list(layout.offsets[:-1])
            for key, shade, text in (("offset", colour(1)[0], "best fixed offset"), ("even", "0.5", "even draw")):
                level = 100 * columns[key][first, r]
                axes.hlines(
                    level, torch.arange(len(first)) - 0.4, torch.arange(len(first)) + 0.4, color=shade, label=text
                )
            _held_out(axes, sites + spread, columns, r)
            axes.set_ylim(-3, 103)
            axes.set_title(name, pad=3)
            axes.set_xlabel("layer")
            if r:
                axes.set_yticklabels([])
            else:
                axes.set_ylabel("largest weight on target (%)")
        handles, texts = axes.get_legend_handles_labels()
        figure.legend(handles, texts, loc="upper center", ncols=4)
    return figure


def _held_out(axes: Axes, x: Tensor, columns: Mapping[str, Tensor], r: int) -> None:
    """The head that was chosen on other images, and its interval."""
    score, low, high = (100 * columns[f"relations_{key}"][:, r] for key in ("held_out", "low", "high"))
    for head in score.isfinite().nonzero().flatten().tolist():
        axes.errorbar(
            [float(x[head])],
            [float(score[head])],
            yerr=[[float(score[head] - low[head])], [float(high[head] - score[head])]],
            fmt="o",
            markerfacecolor="none",
            color=colour(2)[0],
            markersize=6,
            label="best on other images",
        )
