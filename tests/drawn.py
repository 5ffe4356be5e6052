"""What holds for every figure."""

from __future__ import annotations

import io


def assert_nothing_is_clipped(figure) -> None:
    figure.savefig(io.BytesIO(), format="png")  # places the text
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (box.extents, width, height)


def assert_axes_do_not_overlap(figure) -> None:
    figure.savefig(io.BytesIO(), format="png")
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0
