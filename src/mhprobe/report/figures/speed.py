"""Speed-up of a pruned network, by batch size, beside the prediction from FLOPs."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, place

CAPTION = (
    "How much faster the pruned network is than the dense one. Bars are 95 % intervals, the dashed line is what "
    "its FLOPs predict, 1 is no gain. Measured on the machine named above the figure, and true there."
)


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure.

    rows: of surgery.speed.speed_table. Left the speed-up over the dense network, right images per second.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    removed = list(dict.fromkeys(row["removed"] for row in rows))
    batches = sorted({row["batch"] for row in rows})
    with canvas((8.3, 3.1)) as figure:
        gain = place(figure, 0.55, 0.5, 2.5, 2.3)
        rate = place(figure, 3.75, 0.5, 2.2, 2.3)
        for number, name in enumerate(removed):
            points = sorted((row for row in rows if row["removed"] == name), key=lambda row: row["batch"])
            shade, marker = colour(number)
            # side by side, so that intervals do not hide each other
            x = [batches.index(row["batch"]) + 0.1 * (number - (len(removed) - 1) / 2) for row in points]
            y = [row["speedup"] for row in points]
            spread = [[row["speedup"] - row["speedup_low"] for row in points]]
            spread += [[row["speedup_high"] - row["speedup"] for row in points]]
            finite = all(value < float("inf") for side in spread for value in side)
            label = f"{name}: {points[0]['heads']} heads left"
            gain.errorbar(x, y, spread if finite else None, color=shade, marker=marker, markersize=3, lw=1, label=label)
            gain.axhline(points[0]["predicted"], color=shade, linestyle="--", linewidth=0.8, zorder=0)
            rate.plot(
                [batches.index(row["batch"]) for row in points],
                [row["pruned_images_per_s"] for row in points],
                color=shade,
                marker=marker,
                markersize=3,
            )
        shown = sorted((row for row in rows if row["removed"] == removed[0]), key=lambda row: row["batch"])
        for kind, style in (("dense", "-"), ("masked", ":")):
            y = [row[f"{kind}_images_per_s"] for row in shown]
            rate.plot([batches.index(row["batch"]) for row in shown], y, color="0.3", linestyle=style, label=kind)
        gain.plot([], [], color="0.3", linestyle="--", linewidth=0.8, label="predicted from FLOPs")
        gain.axhline(1, color="0.3", linewidth=0.8, zorder=0)
        gain.set_ylabel("times as fast as dense")
        rate.set(ylabel="images per second", yscale="log")
        rate.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        rate.yaxis.set_major_formatter("{x:g}")
        rate.yaxis.set_minor_formatter(NullFormatter())
        for axes in (gain, rate):
            axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
            axes.set_xlabel("batch size")
        gain.set_title(f"{rows[0]['device']}; bars: 95 % interval", loc="left")
        handles = [part for axes in (gain, rate) for part in zip(*axes.get_legend_handles_labels(), strict=True)]
        rate.legend(
            [handle for handle, _ in handles],
            [label for _, label in handles],
            loc="center left",
            bbox_to_anchor=(1.03, 0.5),
            borderaxespad=0,
        )
    return figure
