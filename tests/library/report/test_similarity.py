"""Tables and figures of similarities: nothing lost, nothing clipped, chance drawn."""

from __future__ import annotations

import pytest
import torch

from drawn import assert_nothing_is_clipped
from layouts import LAYOUTS, layout_of, side_by_side
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report import tables
from mhprobe.report.figures import correlations, pairs, style


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_blocks_are_summed_up_without_the_diagonal():
    layout = layout_of(2, 3)
    value = torch.full((5, 5), torch.nan, dtype=torch.float64)
    value[:2, :2] = torch.tensor([[1.0, 0.4], [0.6, 1.0]])  # not symmetric, as PWCCA
    value[2:, 2:] = torch.tensor([[1.0, 0.1, 0.2], [0.1, 1.0, 0.3], [0.2, 0.3, 1.0]])
    null = torch.full_like(value, 0.05)
    table = tables.pairwise_blocks(layout, {"value": value, "null": null})
    assert table.columns == ["block_a", "block_b", "pairs", "min", "mean", "max", "null"]
    assert [row[:3] for row in table.rows] == [[0, 0, 1], [1, 1, 3]]
    assert table.rows[0][3:] == pytest.approx([0.4, 0.5, 0.6, 0.05])
    assert table.rows[1][3:] == pytest.approx([0.1, 0.2, 0.3, 0.05])


def test_blocks_are_compared_with_each_other_where_their_heads_were():
    layout = layout_of(2, 1)
    value = torch.tensor([[1.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.0]])
    table = tables.pairwise_blocks(layout, {"value": value})
    assert [row[:3] for row in table.rows] == [
        [0, 0, 1],
        [0, 1, 2],
    ]  # the single head of block 1 has no other
    assert table.rows[1][3:6] == pytest.approx([0.1, 0.2, 0.3])


def test_all_coefficients_of_a_pair_are_one_row_and_pairs_without_any_have_none():
    layout = layout_of(2, 1)
    rho = torch.full((3, 3, 2), torch.nan)
    rho[:2, :2] = torch.tensor(
        [0.5, torch.nan]
    )  # the third head was not compared, and the second coefficient is none
    table = tables.pairwise_along(layout, rho, ["rho_1", "rho_2"])
    assert table.columns == [
        "head_a",
        "head_b",
        "rho_1",
        "rho_2",
        "block_a",
        "index_a",
        "block_b",
        "index_b",
    ]
    assert [row[:3] for row in table.rows] == [[0, 1, 0.5]] and table.rows[0][3] != table.rows[0][3]


def test_layers_are_listed_by_block_once_per_pair():
    layout = HeadLayout(
        (HeadSite("a", 0, 0, 2, 4), HeadSite("c", 0, 2, 2, 4), HeadSite("d", 1, 3, 2, 4))
    )
    value = torch.tensor(
        [[1.0, 0.5, torch.nan], [0.5, 1.0, torch.nan], [torch.nan, torch.nan, 1.0]]
    )
    table = tables.pairwise_layers(
        layout, {"value": value, "null": value / 10, "rows": torch.tensor([7, 7, 3])}
    )
    assert table.columns == ["block_a", "block_b", "value", "null", "rows_a", "rows_b"]
    assert [row[:2] for row in table.rows] == [
        [0, 2]
    ]  # block 1 has no heads left, block 3 other tokens
    assert table.rows[0][4:] == [7, 7]


def test_attentions_side_by_side_are_one_block_in_sums_and_have_names_in_pairs():
    layout = side_by_side(1, 2)
    heads = tables.pairwise(layout, {"value": torch.rand(6, 6)})
    places = ("block", "index", "site")
    ends = [
        tuple(zip(*(heads.column(f"{name}_{end}") for name in places), strict=True)) for end in "ab"
    ]
    assert len({*ends[0], *ends[1]}) == 6 and len({*zip(*ends, strict=True)}) == 15
    layers = tables.pairwise_layers(layout, {"value": torch.rand(3, 3)}).dicts()
    assert [(row["block_a"], row["block_b"]) for row in layers] == [(0, 0), (0, 1), (0, 1)]
    first, second, last = (site.name for site in layout.sites)
    assert [(row["site_a"], row["site_b"]) for row in layers] == [
        (first, second),
        (first, last),
        (second, last),
    ]
    blocks = tables.pairwise_blocks(layout, {"value": torch.rand(6, 6)})
    assert [row[:3] for row in blocks.rows] == [[0, 0, 6], [0, 1, 8], [1, 1, 1]]
    titles = [style.site_title(layout, number) for number in range(3)]
    assert titles == [first, second, "block 1"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_coefficients_have_a_panel_per_layer_with_mean_range_and_chance(name):
    layout = LAYOUTS[name]
    heads = layout.num_heads
    rho = torch.rand(heads, heads, 8, dtype=torch.float64).sort(-1, descending=True).values
    rho[..., 6:] = torch.nan
    columns = {"rho": rho, "null_rho": torch.where(rho.isnan(), rho, 0.1)}
    figure = correlations.coefficients(layout, columns, "SVCCA")
    assert len(figure.axes) == len(layout.sites)
    if name != "one head":
        a, b = torch.triu_indices(layout.sites[0].num_heads, layout.sites[0].num_heads, 1)
        mean, chance = figure.axes[0].get_lines()
        assert list(mean.get_ydata()[:6]) == pytest.approx(rho[a, b, :6].mean(0).tolist())
        assert list(chance.get_ydata()[:6]) == pytest.approx([0.1] * 6)
        assert len(figure.axes[0].collections) == 1  # the band
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "mean of the pairs",
        "their range",
        "chance",
    ]
    assert_nothing_is_clipped(figure)


def layers(layout: HeadLayout, low: float) -> dict[str, torch.Tensor]:
    stages = torch.tensor([site.stage for site in layout.sites])
    value = low + (1 - low) * torch.rand(len(stages), len(stages), dtype=torch.float64)
    value[stages[:, None] != stages] = torch.nan
    return {"value": value.fill_diagonal_(1), "null": torch.where(value.isnan(), value, 0.02)}


@pytest.mark.parametrize("low", [0.0, 0.8])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layers_are_one_matrix_whose_scale_is_theirs(name, low):
    layout, columns = LAYOUTS[name], layers(LAYOUTS[name], low)
    figure = pairs.pairwise_layers(layout, columns, "linear CKA of blocks")
    panel, bar = figure.axes
    (image,) = panel.get_images()
    assert image.get_array().shape == (len(layout.sites),) * 2
    assert image.get_array().mask.diagonal().all()
    if len(layout.sites) > 1:
        written = [text.get_text() for text in bar.texts] + [bar.get_xlabel()]
        assert image.norm.vmin >= low and any(
            "chance" in text and "0.02" in text for text in written
        )
    edges = sum(line.get_linewidth() == 0.8 for line in panel.get_lines())
    assert edges == 2 * (layout.num_stages - 1)
    assert_nothing_is_clipped(figure)


def test_a_chance_of_zero_is_drawn_with_its_band():
    layout = LAYOUTS["vit"]
    value = torch.randn(72, 72, dtype=torch.float64) / 10
    columns = {
        "value": value,
        "null": value * 0,
        "null_low": value * 0 - 0.05,
        "null_high": value * 0 + 0.05,
    }
    figure = pairs.pairwise(layout, columns, "cosine")
    bar = figure.axes[-1]
    assert [text.get_text() for text in bar.texts] == ["chance 0"]
    assert {-0.05, 0.05} <= {float(line.get_ydata()[0]) for line in bar.get_lines()}
    assert_nothing_is_clipped(figure)


def beside(columns: dict[str, torch.Tensor], level: float) -> dict[str, torch.Tensor]:
    """With an untrained control whose values are ``level``, but for heads with themselves."""
    control = torch.where(columns["value"].isnan(), columns["value"].double(), level)
    return {**columns, "random_init": control.fill_diagonal_(1)}


@pytest.mark.parametrize(
    "level", [-3.0, 0.021, 0.5, 3.0], ids=["below", "at chance", "inside", "above"]
)
@pytest.mark.parametrize("kind", [pairs.pairwise, pairs.pairwise_layers], ids=["heads", "layers"])
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_the_untrained_control_is_written_on_the_colour_bar_and_apart_from_chance(
    name, kind, level
):
    layout = LAYOUTS[name]
    if kind is pairs.pairwise_layers:
        columns = layers(layout, 0.0)
    else:
        value = torch.rand(layout.num_heads, layout.num_heads)
        columns = {"value": value, "null": torch.full_like(value, 0.02)}
    figure = kind(layout, beside(columns, level), "similarity")
    bar = figure.axes[-1]
    written = [*bar.texts, bar.xaxis.label, bar.title]
    (said,) = [text for text in written if f"random init\n{level:.2g}" in text.get_text()]
    if "off the scale" not in said.get_text():  # then it stands at its own height on the axis
        bottom, top = bar.get_ylim()
        assert bottom < level < top and said.xy[1] == pytest.approx(level, abs=1e-6)
        norm, drawn = (
            bar._colorbar.norm,
            [tick for tick in bar.get_yticks() if bottom <= tick <= top],
        )
        assert all(norm.vmin <= tick <= norm.vmax for tick in drawn), "a tick without a colour"
    assert_nothing_is_clipped(figure)
    boxes = [text.get_window_extent() for text in written if text.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_without_a_control_none_is_written():
    figure = pairs.pairwise(LAYOUTS["vit"], {"value": torch.rand(72, 72)}, "similarity")
    assert not any("random" in text.get_text() for text in figure.axes[-1].texts)


def test_a_few_pairs_show_the_controls_level_though_it_looked_at_other_heads():
    value = torch.full((72, 72), torch.nan, dtype=torch.float64)
    value[3, 5] = value[5, 3] = 0.4
    value[3, 7] = value[7, 3] = -0.2
    control = torch.full_like(value, torch.nan)
    control[20, 30] = control[30, 20] = 0.1
    figure = pairs.pairwise(LAYOUTS["vit"], {"value": value, "random_init": control}, "interaction")
    assert [text.get_text() for text in figure.axes[-1].texts] == ["random init\n0.1"]
    assert_nothing_is_clipped(figure)
