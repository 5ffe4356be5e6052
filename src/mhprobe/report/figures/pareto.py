"""Accuracy against what is left to compute: methods of pruning beside each other."""

from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.report.figures.style import Figure, canvas, colour, place

CAPTION = (
    "Accuracy of methods of pruning: left against the FLOPs that are left, right against the time that a batch takes, "
    "measured, over the dense network's. Lines are means over seeds, bands from the lowest to the highest seed. The "
    "star is the dense network. Further up and further left is better; lines that overlap by their bands may be equal."
)


def draw(rows: Sequence[Mapping[str, Any]], batch: int = 64) -> Figure:
    """Return the figure.

    rows: of ``surgery.bench.run_cell``, with method, budget and seed; the last stage that all have is drawn.
    batch: the batch size of the measured time; without timings the right side stays out.
    """
    stage = next(name for name in ("tuned", "repaired", "pruned") if all(name in row for row in rows))
    timed, methods = f"speedup_{batch}", list(dict.fromkeys(row["method"] for row in rows))
    sides = [("flops", "share of FLOPs left", lambda row: row["flops"])]
    if all(timed in row for row in rows):
        sides.append((timed, f"share of time, batch {batch}", lambda row: 1 / row[timed]))
    with canvas((3.2 + 2.85 * len(sides), 3.2)) as figure:
        for side, (_, label, cost) in enumerate(sides):
            axes = place(figure, 0.6 + 2.85 * side, 0.5, 2.4, 2.4)
            for number, method in enumerate(methods):
                shade, marker = colour(number)
                points = []
                for budget in sorted({row["budget"] for row in rows}):
                    cells = [row for row in rows if row["method"] == method and row["budget"] == budget]
                    if cells:
                        accuracy = [100 * row[stage] for row in cells]
                        x = sum(map(cost, cells)) / len(cells)
                        points.append((x, sum(accuracy) / len(cells), min(accuracy), max(accuracy)))
                x, mean, low, high = zip(*sorted(points), strict=True)
                axes.plot(x, mean, color=shade, marker=marker, markersize=3, lw=1, label=method)
                axes.fill_between(x, low, high, color=shade, alpha=0.15, lw=0)
            axes.plot(1, 100 * rows[0]["dense"], "*", color="0.2", markersize=8, label="dense", zorder=3)
            axes.set(xlabel=label, xlim=(0, 1.05), ylabel=f"test accuracy, {stage} (%)" if not side else "")
        axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), borderaxespad=0)
    return figure
