"""Distance of masked models from the unmasked one, in the unit of their score: KL divergence, cosine and the like."""

from collections.abc import Sequence

from mhprobe.masking.parts.trace import Curve
from mhprobe.report.figures.style import Figure, canvas, colour, place, wrapped

CAPTION = (
    "Distance from the unmasked model as heads are switched off: 0 is the same, smaller is closer. A band is the 95 % "
    "interval over images, of random orders over repeats."
)


def draw(curves: Sequence[Curve], num_heads: int) -> Figure:
    """The mean loss of each curve's score over the number of heads masked, with its 95 % band; the split to report."""
    from matplotlib.ticker import MaxNLocator

    split = curves[-1].split
    shown = [curve for curve in curves if curve.split == split]
    most = max(float(curve.points.heads[-1]) for curve in shown) or num_heads
    with canvas((6.3, 3.2)) as figure:
        axes = place(figure, 0.85, 0.5, 3.5, 2.5)
        for number, curve in enumerate(shown):
            points, (shade, marker) = curve.points, ("0.45", "") if curve.averaged else colour(number)
            heads = points.heads.tolist()
            # delta is the loss but for the unmasked model's own, and has the interval
            own = (points.loss - points.delta).tolist()
            low, high = ([a + b for a, b in zip(own, part.tolist(), strict=True)] for part in points[6:])
            every = -(-len(heads) // 13)
            axes.plot(heads, points.loss.tolist(), color=shade, marker=marker, ms=3, markevery=every, label=curve.name)
            axes.fill_between(heads, low, high, color=shade, alpha=0.15, linewidth=0)
        axes.set_xlim(-0.02 * most, 1.02 * most)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"heads masked (of {num_heads})")
        axes.set_ylabel(wrapped(f"{split}: {shown[0].scored.lost}, smaller is closer", 2.5))
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
