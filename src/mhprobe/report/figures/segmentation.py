"""Agreement of maps with masks of objects, by three scores, beside maps that have seen no image."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import COLOURS, Figure, canvas, place

CAPTION = (
    "How well each map tells the object from the ground, by the object's mask, with 95 % intervals over images: the "
    "share of pixels that the map, cut at its mean, has right; intersection over union, mean of object and ground; "
    "average precision of the map's order. Grey: a map that is hottest in the centre, and random patches. A map that "
    "is not ahead of the centre does not show where this image's object is."
)


def draw(rows: Sequence[Mapping[str, Any]], blind: Sequence[str] = ("centre", "random")) -> Figure:
    """Return the figure. rows: map, score, value, low, high; in [0, 1]. blind: the maps that have seen no image."""
    maps, scores = (list(dict.fromkeys(row[key] for row in rows)) for key in ("map", "score"))
    left, wide, gap, tall = 0.3 + 0.062 * max(map(len, maps)), 1.55, 0.2, 0.24 * len(maps)
    with canvas((left + len(scores) * (wide + gap), 0.75 + tall)) as figure:
        for number, score in enumerate(scores):
            axes = place(figure, left + number * (wide + gap), 0.4, wide, tall)
            for y, name in enumerate(maps):
                (row,) = (row for row in rows if (row["map"], row["score"]) == (name, score))
                shade = "0.5" if name in blind else COLOURS[0]
                axes.hlines(y, row["low"], row["high"], color=shade, linewidth=1.4)
                axes.plot(row["value"], y, "o", color=shade, markersize=4)
                if name == blind[0]:
                    axes.axvline(row["value"], color="0.5", ls=":", lw=0.8, zorder=0)
            axes.set_ylim(len(maps) - 0.5, -0.5)
            axes.set_yticks(range(len(maps)), maps if number == 0 else [""] * len(maps))
            axes.margins(x=0.08)
            axes.set_title(score, loc="left", pad=4)
    return figure
