"""A map over space, and channels over blocks, each as a surface in three dimensions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.report.figures.style import Figure, canvas

CAPTION = (
    "Left: a map of one image as a surface over its patches; a flat one says nothing. Right: how large each channel of "
    "the residual stream is, block by block; ridges are channels that are large everywhere. Heights behind peaks are "
    "hidden: numbers are in the table."
)


def draw(space: Tensor, channels: Tensor, blocks: Sequence[int]) -> Figure:
    """Return the figure. space: (h, w). channels: (L, C), a row per block in ``blocks``."""
    with canvas((7.4, 3.4)) as figure:
        views = ((space, "column", "row", "rollout"), (channels, "channel", "block", "mean |activation|"))
        for number, (values, across, down, up) in enumerate(views):
            axes: Any = figure.add_axes((0.02 + 0.5 * number, 0.06, 0.4, 0.86), projection="3d")
            ys, xs = torch.meshgrid(*(torch.arange(side) for side in _at_least_two(values).shape), indexing="ij")
            heights = _at_least_two(values).double()
            axes.plot_surface(xs.numpy(), ys.numpy(), heights.numpy(), cmap="viridis", linewidth=0.15,
                              edgecolor="0.3", rcount=60, ccount=200)  # fmt: skip
            axes.set_xlabel(across, labelpad=-6)
            axes.set_ylabel(down, labelpad=-6)
            axes.set_zlabel(up, labelpad=4)
            axes.locator_params(axis="z", nbins=4)
            axes.locator_params(axis="x", nbins=5, integer=True)
            axes.tick_params(labelsize=6, pad=-3)
            axes.tick_params(axis="z", pad=0)
            if number:
                axes.set_yticks(range(len(blocks)), [str(block) for block in blocks])
            else:
                axes.locator_params(axis="y", nbins=5, integer=True)
                axes.invert_yaxis()
            axes.set_title(("space-wise", "channel-wise")[number], pad=0)
    return figure


def _at_least_two(values: Tensor) -> Tensor:
    """A surface needs two rows and two columns: a single one is drawn twice."""
    values = values.expand(2, -1) if len(values) == 1 else values
    return values.expand(-1, 2) if values.shape[1] == 1 else values
