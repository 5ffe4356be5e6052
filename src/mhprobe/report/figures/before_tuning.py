"""Heads before and after fine-tuning: likeness to what they were, and how far each measure moved, block by block."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, Figure, canvas, place, ticks, wrapped

CAPTION = (
    "Heads of each block side by side. Above, how alike a head's outputs are to what they were before tuning, with its "
    "95 % interval; the dash is chance. Below, each measure before (ring) and after (dot): filled where the change "
    "differs from 0 (p < .05 after Holm over all heads and measures)."
)
SURE = 0.05


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], labels: Mapping[str, str]) -> Figure:
    """Return the figure. columns: of the panel before_tuning. labels: of its measures, by name."""
    blocks = [site.block for site in layout.sites]
    step = min(0.55, 6.0 / len(blocks))
    wide, tall, gap, left = max(2.2, step * len(blocks)), 1.1, 0.18, 0.85
    at = [site.block + 0.8 * ((head + 0.5) / site.num_heads - 0.5) for _, head, site in layout]
    with canvas((left + wide + 1.8, 0.5 + (1 + len(labels)) * (tall + gap))) as figure:
        rows = [place(figure, left, 0.45 + row * (tall + gap), wide, tall) for row in range(1 + len(labels))][::-1]
        rows[0].vlines(at, columns["itself_low"], columns["itself_high"], color=COLOURS[0], lw=1, alpha=0.5)
        rows[0].plot(at, columns["itself"], ".", color=COLOURS[0], label="like itself before")
        rows[0].plot(at, columns["itself_null"], "_", color="black", ms=4, label="chance")
        rows[0].set_ylim(0, 1.03)
        rows[0].set_ylabel(wrapped("SVCCA with itself before", tall))
        for axes, (name, label) in zip(rows[1:], labels.items(), strict=True):
            before, after = columns[f"{name}_before"], columns[f"{name}_after"]
            sure = columns[f"{name}_p"] < SURE
            axes.vlines(at, before, after, color="0.6", lw=0.8)
            axes.plot(at, before, "o", mfc="white", mec=COLOURS[1], ms=3.2, mew=0.8, label="before")
            kinds = ((sure, COLOURS[0], "after, p < .05"), (~sure, "white", "after, no change shown"))
            for chosen, face, text in kinds:
                x = [place for place, shown in zip(at, chosen.tolist(), strict=True) if shown]
                axes.plot(x, after[chosen], "o", mfc=face, mec=COLOURS[0], ms=3.2, mew=0.8, label=text)
            axes.set_ylabel(wrapped(label, tall))
        for axes in rows:
            axes.set_xticks([blocks[i] for i in ticks(len(blocks), step)], labels=None if axes is rows[-1] else [])
            axes.set_xlim(blocks[0] - 0.55, blocks[-1] + 0.55)
        rows[-1].set_xlabel("block (heads side by side)")
        for axes in rows[:2]:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), borderaxespad=0)
    return figure
