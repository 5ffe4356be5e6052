"""Heads on two views of an image: each head's likeness to itself, and to the most alike other head of its block."""

from collections.abc import Mapping

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import Figure, canvas, colour, place, ticks

CAPTION = (
    "Each head on an image and on its mirror image: how alike its own outputs are (points), and how like it the most "
    "alike other head of its block is on the other view (squares). A head corresponds to itself where the point is "
    "above its square; the title counts them, beside what chance would give."
)


def draw(layout: HeadLayout, found: Mapping[str, Tensor]) -> Figure:
    """Return the figure. found: itself, best_other (in [0, 1]), corresponds (0 or 1), chance, each (A,)."""
    blocks = [site.block for site in layout.sites]
    step = min(0.6, 5.5 / len(blocks))
    wide = max(2.2, step * len(blocks))
    same, expected = int(found["corresponds"].sum()), found["chance"].sum().item()
    with canvas((0.6 + wide + 1.75, 3.0)) as figure:
        axes = place(figure, 0.6, 0.5, wide, 2.15)
        for name, number, text in (("itself", 0, "itself"), ("best_other", 1, "most alike other")):
            shade, marker = colour(number)
            at = [site.block + 0.7 * ((head + 0.5) / site.num_heads - 0.5) for _, head, site in layout]
            axes.plot(at, found[name].tolist(), marker, color=shade, markersize=3, alpha=0.8, label=text)
        axes.set_ylim(0, 1.03)
        axes.set_xticks([blocks[i] for i in ticks(len(blocks), step)])
        axes.set_xlabel("block (heads side by side)")
        axes.set_ylabel("alignment (CKA) across views")
        title = f"{same} of {layout.num_heads} heads correspond to themselves (chance {expected:.1f})"
        axes.set_title(title, loc="left", pad=5)
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure
