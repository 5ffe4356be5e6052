"""A value of every head against depth: a dot per head, the mean of each layer, and the level to read it against."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import COLOURS, NAMELESS, Figure, Names, canvas, place, ticks

_LEVELS = {
    "uniform": ("even attention", "--", COLOURS[1]),
    "chance": ("chance", "--", COLOURS[1]),
    "random_init": ("random initialisation", ":", COLOURS[2]),
}

DRAWS_CONTROL = True  # from the column "random_init"
CAPTION = (
    "A dot per head with its 95 % interval over images, often shorter than the dot, and a bar at the mean of its "
    "block. The dashed line is what even attention or chance would give, "
    "the dotted line a freshly initialised network: dots on a line say nothing about training."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """Dots over blocks. The means of "uniform" or "chance" in each layer are a dashed line, of "random_init" dotted."""
    value = columns["value"].double()
    blocks = [site.block for site in layout.sites]
    step = min(0.45, 5.5 / len(blocks))
    wide, tall = max(1.6, step * len(blocks)), 2.3
    with canvas((0.75 + wide + (1.75 if "random_init" in columns else 1.45), 0.5 + tall + 0.2)) as figure:
        axes = place(figure, 0.75, 0.5, wide, tall)
        for number, site in enumerate(layout.sites):
            span = layout.span(number)
            heads = value[span]
            # side by side in the order of heads, so that equal heads do not hide each other
            spread = [(h - (site.num_heads - 1) / 2) / max(site.num_heads, 4) * 0.6 for h in range(site.num_heads)]
            axes.plot(
                [site.block + s for s in spread], heads.tolist(), ".", color=COLOURS[0], ms=4, alpha=0.7,
                label="head" if number == 0 else "",
            )  # fmt: skip
            if {"low", "high"} <= set(columns):
                low, high = (columns[name][span].double().tolist() for name in ("low", "high"))
                axes.vlines([site.block + s for s in spread], low, high, color=COLOURS[0], linewidth=0.8, alpha=0.7)
            axes.hlines(
                heads.mean().item(), site.block - 0.4, site.block + 0.4, color="black", linewidth=1.2,
                label="mean of the block" if number == 0 else "",
            )  # fmt: skip
        for name, (title, dashes, colour) in _LEVELS.items():
            if name in columns:
                level = [columns[name].double()[layout.span(number)].mean().item() for number in range(len(blocks))]
                edges = [edge for block in blocks for edge in (block - 0.5, block + 0.5)]
                axes.plot(edges, [y for y in level for _ in (0, 1)], dashes, color=colour, linewidth=1.2, label=title)
        axes.set_xlim(min(blocks) - 0.6, max(blocks) + 0.6)
        axes.set_xticks([blocks[0] + tick for tick in ticks(blocks[-1] - blocks[0] + 1, step)])
        axes.set_xlabel("block")
        axes.set_ylabel(label)
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0, handlelength=1.4)
    return figure
