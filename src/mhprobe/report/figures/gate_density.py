"""Hard-concrete gates: how likely each value is, and what the learned gates are (Voita et al. 2019, Figure 6)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mhprobe.report.figures.style import Axes, Figure, canvas, colour, place

CAPTION = (
    "How likely a hard-concrete gate is exactly 0, exactly 1 (points at the ends) or in a bin between, for gates of "
    "different log alpha; beside it the learned gates (bars), against what a draw of them would give in training "
    "(line). Gates that have decided are at the ends; the start of training has all of them at 1."
)
BINS = 20


def draw(shares: Mapping[str, Tensor], learned: tuple[Tensor, Tensor] | None = None) -> Figure:
    """Return the figure.

    shares: by name (BINS + 2,), P(gate = 0), of each bin, P(gate = 1). learned: (A,) gates, and their shares.
    """
    panels = bool(shares) + (learned is not None)
    wide, gap = 2.6, 0.75
    with canvas((0.6 + panels * wide + (panels - 1) * gap + 0.2, 2.9)) as figure:
        if shares:
            axes = place(figure, 0.6, 0.5, wide, 2.05)
            for number, (name, share) in enumerate(shares.items()):
                _stairs(axes, share, *colour(number), name)
            axes.legend(loc="upper center")
            axes.set_ylabel(f"probability (bins of 1/{BINS})")
            axes.set_title("the distribution", loc="left")
        if learned is not None:
            gates, expected = learned
            axes = place(figure, 0.6 + (wide + gap) * bool(shares), 0.5, wide, 2.05)
            heights = histogram(gates)
            places = [-0.04, *((k + 0.5) / BINS for k in range(BINS)), 1.04]
            axes.bar(places, heights.tolist(), width=0.8 / BINS, color="0.75", label=f"{len(gates)} learned gates")
            _stairs(axes, expected, *colour(0), "a draw of them in training")
            axes.legend(loc="upper center")
            axes.set_ylabel("share of the heads")
            axes.set_title("the learned gates", loc="left")
    return figure


def histogram(gates: Tensor) -> Tensor:
    """(A,) gates in [0, 1] -> (BINS + 2,) float64 shares of exactly 0, of each bin, of exactly 1."""
    inner = gates[(gates > 0) & (gates < 1)].double()
    counts = torch.histc(inner, BINS, 0, 1)
    ends = [(gates <= 0).sum()[None].double(), (gates >= 1).sum()[None].double()]
    return torch.cat([ends[0], counts, ends[1]]) / len(gates)


def _stairs(axes: Axes, share: Tensor, shade: str, marker: str, name: str) -> None:
    values = share.tolist()
    axes.stairs(values[1:-1], [k / BINS for k in range(BINS + 1)], color=shade, baseline=None, label=name)
    axes.plot([-0.04, 1.04], [values[0], values[-1]], marker, color=shade, markersize=4)
    axes.set_xlim(-0.09, 1.09)
    axes.set_ylim(0, 1.35 * max(axes.get_ylim()[1] / 1.35 if axes.lines[:-1] else 0, *values))
    axes.set_xlabel("gate (points: exactly 0, exactly 1)")
