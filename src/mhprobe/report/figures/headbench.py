"""HeadBench: measures that find planted heads: detectors down, plants across, one panel per family."""

from collections.abc import Sequence
from typing import Any

import torch

from mhprobe.report.figures.style import Figure, canvas, colour_bar, place, readable

CAPTION = (
    "How well each measure tells heads of which it is known what they do from all others (AUROC: 1 always, 0.5 like a "
    "coin, 0 always the wrong way round). A frame marks what was expected of the measure beforehand, by what it says "
    "about itself; a measure with nothing expected is read as: large values for planted heads. Empty: no number there."
)
SHORT = 0.95  # from here on a measure can be believed


def draw(rows: Sequence[Any]) -> Figure:
    """Return the figure. rows: with family, plant, measure, direction and auroc, as in tables/headbench.csv."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    families = list(dict.fromkeys(row.family for row in rows))
    names = sorted({row.measure for row in rows})
    plants = sorted({row.plant for row in rows})
    cell, left, bottom, between, top = 0.33, 2.1, 1.15, 0.3, 0.35
    wide, tall = cell * len(plants), 0.75 * cell * len(names)
    size = (left + len(families) * (wide + between) + 0.75, bottom + tall + top)
    with canvas(size) as figure:
        image: Any = None
        for number, family in enumerate(families):
            axes = place(figure, left + number * (wide + between), bottom, wide, tall)
            values = torch.full((len(names), len(plants)), torch.nan)
            for row in rows:
                if row.family == family:
                    at = names.index(row.measure), plants.index(row.plant)
                    values[at] = row.auroc
                    text = f"{row.auroc:.2f}".lstrip("0").replace("1.00", "1")
                    axes.text(at[1], at[0], text, ha="center", va="center", size=6)
                    if row.direction:
                        axes.add_patch(Rectangle((at[1] - 0.5, at[0] - 0.5), 1, 1, fill=False, linewidth=1.2))
            image = axes.imshow(
                values.numpy(), cmap=colormaps["RdBu_r"].with_extremes(bad="0.93"), norm=Normalize(0, 1), aspect="auto"
            )
            readable(axes)
            axes.set_xticks(range(len(plants)), [name.replace("_", " ") for name in plants], rotation=45, ha="right")
            axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names))
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(family, loc="left", pad=4)
        bar_at = left + len(families) * (wide + between) - between + 0.12
        colour_bar(figure, image, bar_at, bottom, min(tall, 3), "AUROC")
    return figure
