"""Attention to each kind of key, relative to even attention: kinds by heads, heads in the order of layers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures.style import NAMELESS, NOT_COMPARED, Figure, Names, canvas, colour_bar, place

_ENDS = (1, 2, 3, 5)  # powers of two at which colours may end: 32 times at most
_INSIDE = 0.95  # of the cells: a few that lie farther out would leave the others white

CAPTION = (
    "Attention to each kind of key as a multiple of what even attention would give it: red more, blue less, white "
    "is chance. Cells beyond the ends of the colours (at most one in twenty) take the last colour. Kinds of which the "
    "model has no key are left out."
)


def draw(layout: HeadLayout, columns: Mapping[str, Tensor], label: str, names: Names = NAMELESS) -> Figure:
    """log2 of attention over even attention: red above it, blue below; grey where a head has no such key."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.ticker import FixedLocator, FuncFormatter

    kinds = [name.removeprefix("uniform_") for name in columns if name.startswith("uniform_")]
    ratios = {kind: (columns[kind] / columns[f"uniform_{kind}"]).double().log2() for kind in kinds}
    kinds = [kind for kind, each in ratios.items() if not each.isnan().all()]
    ratio = torch.stack([ratios[kind] for kind in kinds])
    ratio = ratio.masked_fill(ratio.isneginf(), -_ENDS[-1])
    finite = ratio[ratio.isfinite()].abs()
    most = finite.quantile(_INSIDE).item() if len(finite) else 0.0
    limit = next((end for end in _ENDS if most <= end), _ENDS[-1])
    count = layout.num_heads
    wide, tall, left, bottom = min(7.5, max(2.5, 0.12 * count)), 0.2 * len(kinds), 0.95, 0.5
    with canvas((left + wide + 1.25, bottom + tall + 0.2)) as figure:
        axes = place(figure, left, bottom, wide, tall)
        image = axes.imshow(
            ratio.numpy(), cmap=colormaps["RdBu_r"].with_extremes(bad=NOT_COMPARED), norm=Normalize(-limit, limit),
            aspect="auto", interpolation="none",
        )  # fmt: skip
        for edge in layout.offsets[1:-1]:
            axes.axvline(edge - 0.5, color="black", linewidth=0.6)
        for row in range(1, len(kinds)):
            axes.axhline(row - 0.5, color="white", linewidth=0.6)
        axes.set_yticks(range(len(kinds)), [_title(kind) for kind in kinds])
        middles = [(a + b - 1) / 2 for a, b in zip(layout.offsets, layout.offsets[1:], strict=False)]
        shown: list[tuple[float, str]] = []
        last = -1.0
        for middle, site in zip(middles, layout.sites, strict=True):
            if (middle - last) * wide / count >= 0.17 or not shown:  # room for a number
                shown.append((middle, str(site.block)))
                last = middle
        axes.set_xticks([middle for middle, _ in shown], [name for _, name in shown])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("block (a column per head)")
        bar = colour_bar(figure, image, left + wide + 0.12, bottom, tall)
        bar.ax.set_title("(and more)" if (finite > limit).any() else "", fontsize=6, pad=3)
        bar.locator = FixedLocator(
            [-power for power in reversed(_ENDS)] + [0, *_ENDS]
        )  # a control may take other limits
        bar.formatter = FuncFormatter(_multiple)
        grey = "\n(grey: no such key)" if ratio.isnan().any() else ""
        bar.set_label("attention as a multiple\nof even attention" + grey)
    return figure


def _multiple(power: float, _: int | None = None) -> str:
    return f"{2**power:.0f}" if power >= 0 else f"1/{2**-power:.0f}"


def _title(kind: str) -> str:
    return {"cls": "CLS", "cls_to_cls": "CLS to CLS"}.get(kind, kind.replace("_", " "))
