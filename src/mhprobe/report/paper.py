"""Figures for a printed page: as wide as one column or two, with no text below six points.

A figure is drawn as for the screen and then made smaller, if it has to be. Its text shrinks with it, to six points at
most.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

ONE, TWO = 3.35, 7.0  # inches of a column, and of both with what is between them
LEAST = 6.0  # points
DPI = 300
_TICKS = 7.0  # points of the smallest text of a figure, as a rule
_MARGIN = 0.02  # inches above and below


def fit(figure: Figure) -> Bbox:
    """Make the figure fit one column, or both if its text would become too small; what of it to print, in inches.

    A figure that is narrower than its column stands in the middle of it, in its own size.
    """
    from matplotlib.transforms import Bbox

    _shrink(figure, 1)  # small print of the screen grows to what can be read
    box = figure.get_tightbbox()
    column = ONE if box.width * LEAST / _TICKS <= ONE else TWO
    for _ in range(6):  # text that is small already does not shrink: once is not always enough
        if box.width <= column:
            break
        _shrink(figure, 0.99 * column / box.width)
        box = figure.get_tightbbox()
    middle = (box.x0 + box.x1) / 2
    return Bbox.from_extents(middle - column / 2, box.y0 - _MARGIN, middle + column / 2, box.y1 + _MARGIN)


def _shrink(figure: Figure, by: float) -> None:
    """Everything that was placed follows the size of the figure; text does not by itself."""
    from matplotlib.text import Text

    figure.set_size_inches(*(by * side for side in figure.get_size_inches()))
    axes: Any
    text: Any
    for axes in figure.findobj(lambda artist: hasattr(artist, "xaxis")):
        for axis, which in itertools.product((axes.xaxis, axes.yaxis), ("major", "minor")):
            if labels := axis.get_ticklabels(which=which):  # also those that are only made when the figure is drawn
                axis.set_tick_params(which=which, labelsize=max(LEAST, by * labels[0].get_fontsize()))
    for text in figure.findobj(Text):
        text.set_fontsize(max(LEAST, by * text.get_fontsize()))
