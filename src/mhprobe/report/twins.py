"""Figures of a measure beside its control, the same measure of a freshly initialised network, on the same scale.

Some kinds draw a control themselves, from the column "random_init" (``draws_control``). Every other
kind is drawn twice, the control below with the same limits and colours: noise on a scale of its own
would look like structure. If the control lies too far out, the measure keeps its limits, and a box
in the control marks the frame of the panel above.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import SubFigure
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report.figures import kinds, style
from mhprobe.report.figures.style import NAMELESS, Axes, Figure, Names

_STRIP = 0.28  # inches of a line above each of the two
_ROOM = 0.1  # least share of the common frame for the measure's own


def draw_measure(
    kind: str,
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    label: str,
    names: Names | None = None,
    control: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Figure:
    """Draw a figure of a measure's columns, of a kind of ``report/figures``.

    label: of "value", with its unit. names: along the extra axis of columns. control: the same
    columns of the freshly initialised network, if measured. options: of this kind.
    """

    def drawn(of: Mapping[str, Tensor]) -> Figure:
        return kinds()[kind](layout, of, label, names or NAMELESS, **options)

    if control is None or kinds()[kind].draws_control:
        return drawn(columns)
    shown = {"as measured": columns, "the same, freshly initialised": control}
    sizes = [
        style.inches(drawn(of)) for of in shown.values()
    ]  # a figure says its size when it is drawn
    wide = max(size[0] for size in sizes)
    tall = sum(size[1] + _STRIP for size in sizes)
    with style.canvas((wide, tall)) as figure:
        ratios = [part for size in sizes for part in (_STRIP, size[1])]
        rooms = figure.subfigures(4, 1, height_ratios=ratios, hspace=0, squeeze=False)[:, 0]
        for (title, of), above, room in zip(shown.items(), rooms[::2], rooms[1::2], strict=True):
            above.text(0.1 / wide, 0.25, title, fontweight="bold", va="bottom")
            style.drawn_on(room, drawn, of)
        _one_scale(rooms[1], rooms[3])
    return figure


def _one_scale(figure: SubFigure, control: SubFigure) -> None:
    """Set the same limits of colours and axes, panel by panel; not if the two have different panels."""
    if len(figure.axes) != len(control.axes):
        return
    bars = [axes._colorbar for axes in (*figure.axes, *control.axes) if hasattr(axes, "_colorbar")]
    marks = [(bar.locator, bar.formatter) for bar in bars]
    for a, b in zip(figure.axes, control.axes, strict=True):
        if hasattr(a, "_colorbar"):
            continue  # follows its picture
        for both in zip(_coloured(a), _coloured(b), strict=False):
            _one_range(both)
        for axes in (a, b):
            style.colour_text(axes)
        if not a.images:
            _one_frame(a, b)
    for bar, (locator, formatter) in zip(bars, marks, strict=True):  # new limits have reset them
        bar.locator, bar.formatter = locator, formatter


def _one_range(marks: Sequence[Any]) -> None:
    """Give marks the colours of all their values; of colours on both sides of 0 the same range on both."""
    norms = [mark.norm for mark in marks]
    low = min(norm.vmin for norm in norms)
    high = max(norm.vmax for norm in norms)
    signed = [mark for mark in marks if mark.norm.vmin == -mark.norm.vmax]
    if signed:
        high = max(-low, high)
        low = -high
        for mark in marks:
            mark.set_cmap(signed[0].cmap)
    for norm in norms:
        norm.vmin, norm.vmax = low, high


def _coloured(axes: Axes) -> list[Any]:
    """Return the marks that are coloured by a number."""
    return [part for part in (*axes.images, *axes.collections) if part.get_array() is not None]


def _one_frame(a: Axes, b: Axes) -> None:
    """Set limits that hold both panels; if they leave ``a`` no room, of ``b`` alone, with a box for ``a``."""
    frame, control = ((axes.get_xlim(), axes.get_ylim()) for axes in (a, b))
    room = True
    shared: dict[str, Any] = {}
    for name, one, other in zip(("xlim", "ylim"), frame, control, strict=True):
        if one[0] > one[1] or other[0] > other[1]:
            continue  # an axis of names, which runs downwards and stays as it is
        low = min(one[0], other[0])
        high = max(one[1], other[1])
        shared[name] = (low, high)
        room = room and one[1] - one[0] >= _ROOM * (high - low)
    for axes in (a, b) if room else (b,):
        axes.set(**shared)
    if not room:
        (left, right), (bottom, top) = frame
        look: Any = {"edgecolor": "C3", "linewidth": 0.8, "zorder": 9, "clip_on": False}
        style.box(b, (left, bottom), right - left, top - bottom, **look)
        b.set_title("box: the frame above", loc="right", fontsize=6, color="C3", pad=14)
