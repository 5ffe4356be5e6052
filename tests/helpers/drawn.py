"""What holds for every figure."""

from __future__ import annotations

import os
import pickle
from typing import Any

import matplotlib
import pytest
from matplotlib.image import AxesImage
from matplotlib.text import Text
from packaging.version import Version

from mhprobe.report.figures.style import LEAST, ONE, SCREEN, TWO, fit_columns

_ON_PAPER: set[str] = (
    set()
)  # tests whose first figure was held against a printed page: one each is enough


def needs_matplotlib(version: str, what: str) -> None:
    """Skip a test, by name, for a matplotlib before ``version``. what: that one does, with its verb."""
    if Version(matplotlib.__version__) < Version(version):
        pytest.skip(f"matplotlib {matplotlib.__version__} {what}; {version} does not")


def assert_nothing_is_clipped(figure) -> None:
    """Neither on the screen nor, for the first figure of a test, on paper."""
    figure.set_dpi(SCREEN)  # as it is printed
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (
        box.extents,
        width,
        height,
    )
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("[")[0]
    if test not in _ON_PAPER:
        _ON_PAPER.add(test)
        assert_fits_paper(pickle.loads(pickle.dumps(figure)))


def assert_fits_paper(figure) -> None:
    """One column or two wide, all of it inside, no text below six points.

    The figure is made smaller.
    """
    page = fit_columns(figure)
    box = figure.get_tightbbox()
    assert page.width == pytest.approx(ONE) or page.width == pytest.approx(TWO)
    assert (
        page.x0 <= box.x0 + 1e-6
        and box.x1 <= page.x1 + 1e-6
        and page.y0 <= box.y0
        and box.y1 <= page.y1
    )
    small = {
        t.get_text(): t.get_fontsize()
        for t in figure.findobj(Text)
        if t.get_text() and t.get_fontsize() < LEAST
    }
    assert not small, small


def assert_axes_do_not_overlap(figure) -> None:
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0


def images(figure) -> list[Any]:
    return [
        image for axes in figure.axes for image in axes.get_images() if isinstance(image, AxesImage)
    ]
