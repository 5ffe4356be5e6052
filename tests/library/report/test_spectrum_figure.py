"""The figures of OutputFrequency show every head, every block and no more than was measured."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped
from mhprobe.heads import Block, HeadLayout, HeadSite
from mhprobe.report.figures import frequencies as frequencies_figures

LAYOUTS = {
    "vit": ([12] * 12, [0] * 12),
    "swin": ([3, 3, 6, 6, 12, 12], [0, 0, 1, 1, 2, 2]),
    "one": ([2], [0]),
}


def material(name):
    heads, stages = LAYOUTS[name]
    pairs = list(zip(heads, stages, strict=True))
    layout = HeadLayout(
        tuple(HeadSite(f"b{i}.attn", stage, i, count, 4) for i, (count, stage) in enumerate(pairs)),
        tuple(Block(f"b{i}", stage, f"b{i}.norm2") for i, (_, stage) in enumerate(pairs)),
    )
    torch.manual_seed(0)
    frequencies = torch.arange(8)[None] / 8.0
    spectra, stream = -torch.rand(sum(heads), 8).cumsum(1), -torch.rand(len(heads), 3, 8).cumsum(2)
    for i, stage in enumerate(stages):  # grids that are halved have every second frequency
        absent = [k for k in range(8) if k % 2**stage]
        stream[i, :, absent] = torch.nan
        spectra[layout.span(i), absent] = torch.nan
    variance = torch.rand(len(heads), 3) + 0.5
    return layout, {
        "spectrum": spectra,
        "stream": stream,
        "frequencies": frequencies,
        "variance": variance,
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_spectra_have_a_line_per_block_and_per_head(name):
    layout, columns = material(name)
    figure = frequencies_figures.spectrum(layout, columns, "label")
    *panels, stream = figure.axes
    assert len(stream.get_lines()) == len(layout.sites) + 1  # and white noise
    assert [len(axes.get_lines()) - 1 for axes in panels] == [
        site.num_heads for site in layout.sites
    ]
    first = columns["spectrum"][0]
    assert list(panels[0].get_lines()[0].get_ydata()) == pytest.approx(
        first[first.isfinite()].tolist()
    )
    assert_nothing_is_clipped(figure)


@pytest.mark.parametrize("name", LAYOUTS)
def test_depth_goes_from_input_through_attention_to_mlp_and_breaks_between_stages(name):
    layout, columns = material(name)
    figure = frequencies_figures.depth_variance(
        layout, columns, "Δ ln amplitude, highest frequency"
    )
    left, right = figure.axes
    steps = [
        line
        for line in left.get_lines()
        if len(line.get_xdata()) == 2 and line.get_xdata()[1] % 0.5 == 0
    ]
    steps = [line for line in steps if line.get_xdata()[0] != line.get_xdata()[1]]
    assert len(steps) == 2 * len(layout.blocks)
    assert [y for line in steps for y in line.get_ydata()] == pytest.approx(
        columns["variance"][:, [0, 1, 1, 2]].flatten().tolist()
    )
    stage = layout.blocks[-1].stage
    highest = [k for k in range(8) if k % 2**stage == 0][-1]
    expected = columns["stream"][-1, 2, highest].item()
    assert any(line.get_ydata()[-1] == pytest.approx(expected) for line in right.get_lines())
    assert_nothing_is_clipped(figure)
