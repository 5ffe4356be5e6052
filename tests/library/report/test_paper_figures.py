"""Figures that papers ask for and no measure by itself: they say what they are given, and clip nothing."""

from __future__ import annotations

import pytest
import torch

import mhprobe
from drawn import assert_nothing_is_clipped, needs_matplotlib
from mhprobe.measures.parts.functions import LABELS
from mhprobe.report import twins
from mhprobe.report.figures import (
    attention,
    classes,
    frequencies,
    gates,
    maps,
    masking,
    pruned,
    runs,
    style,
    training,
)
from mhprobe.report.figures import heads as heads_figures
from mhprobe.report.figures import pairs as pairs_figures
from mhprobe.scoring.base import known_scores
from models import tiny_swin, tiny_vit


@pytest.fixture(params=[tiny_vit, tiny_swin], ids=["vit", "swin"])
def layout(request):
    return mhprobe.attach(request.param()).layout


def per_head(layout, *names):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(layout.num_heads, generator=generator, dtype=torch.float64)
        for name in names
    }


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_accuracy_without_a_head_is_written_and_framed_where_it_is_sure(layout):
    columns = {**per_head(layout, "drop"), "accuracy": torch.tensor(0.5).double()}
    columns["drop"] *= 0.1
    columns["p_holm"] = torch.ones(layout.num_heads)
    columns["p_holm"][1] = 0.001
    figure = heads_figures.accuracy_without(layout, columns, "unused")
    assert f"{50 - 100 * columns['drop'][0]:.1f}" in texts(figure)
    assert sum(len(axes.patches) for axes in figure.axes) == 1
    assert_nothing_is_clipped(figure)


def test_the_histogram_counts_every_head(layout):
    columns = {
        "drop": per_head(layout, "drop")["drop"] - 0.3,
        "p_holm": torch.linspace(0, 1, layout.num_heads),
    }
    figure = heads_figures.drop_histogram(layout, columns, "unused")
    assert sum(patch.get_height() for patch in figure.axes[0].patches) == layout.num_heads
    assert_nothing_is_clipped(figure)


def test_slopes_are_lines_of_kinds_and_not_of_sums(layout):
    names = ("gradient_special", "gradient_cls", "gradient_left")
    found = per_head(layout, *names)
    found["gradient_left"] = 3 * found["gradient_cls"]
    figure = attention.slopes_by_layer(layout, found, "unused")
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["class token", "left"]
    assert_nothing_is_clipped(figure)


def test_lines_that_lie_on_one_another_are_one_with_all_their_names(layout):
    """Eleven kinds were eleven lines, of which seven hid behind the last; a kind keeps its colour in the control."""
    first = per_head(layout, "x")["x"].abs() + 1
    kinds = {"cls": 1.0, "self": 3.0, "left": 1.1, "right": 0.9, "far": 1.5}
    found = {f"gradient_{kind}": factor * first for kind, factor in kinds.items()}
    found["gradient_far"] = found["gradient_far"].clone()
    found["gradient_far"][layout.span(len(layout.sites) - 1)] = 0  # its line ends earlier
    figure = twins.draw_measure(
        "slopes_by_layer", layout, found, "unused", None, {**found, "gradient_self": 1.05 * first}
    )
    own, control = ({line.get_label(): line for line in axes.get_lines()} for axes in figure.axes)
    assert list(own) == ["class token, left, right", "self", "far"]
    assert list(control) == ["class token, self, left,\nright", "far"]
    assert own["far"].get_color() == control["far"].get_color() != own["self"].get_color()
    drawn = torch.tensor(own["class token, left, right"].get_ydata())
    means = torch.stack([first[layout.span(i)].mean() for i in range(len(layout.sites))])
    torch.testing.assert_close(drawn, means * (1.0 * 1.1 * 0.9) ** (1 / 3))
    assert_nothing_is_clipped(figure)


def test_a_network_at_chance_has_no_empty_panel(layout):
    columns = {"drop": per_head(layout, "drop")["drop"], "p_holm": torch.ones(layout.num_heads)}
    figure = twins.draw_measure(
        "drop_histogram", layout, columns, "unused", None, {**columns, "value": columns["drop"]}
    )
    assert len(figure.axes) == 1 and not figure.subfigs


def test_blocks_have_their_range_and_chance(layout):
    rows = [
        {"block": site.block, "min": 0.1, "mean": 0.3, "max": 0.9, "null": 0.2}
        for site in layout.sites
    ]
    for chosen in (rows, []):
        assert_nothing_is_clipped(pairs_figures.by_block(layout, chosen, "similarity"))


@pytest.mark.parametrize("limits", ["shared", "each", [0.0, 1.0]])
def test_limits_of_colours_are_shared_own_or_given(layout, limits):
    heads = layout.num_heads
    value = torch.full((heads, heads), torch.nan, dtype=torch.float64)
    for site in range(len(layout.sites)):
        span = layout.span(site)
        value[span, span] = (
            0.2 + 0.1 * site + 0.05 * torch.rand(value[span, span].shape, dtype=torch.float64)
        )
    figure = pairs_figures.pairwise(layout, {"value": value}, "similarity", limits=limits)
    norms = {
        (image.norm.vmin, image.norm.vmax) for axes in figure.axes for image in axes.get_images()
    }
    assert len(norms) == (len(layout.sites) if limits == "each" else 1)
    if not isinstance(limits, str):
        assert norms == {(0.0, 1.0)}
    assert_nothing_is_clipped(figure)


def test_what_is_masked_is_a_grid_per_step(layout):
    masks = torch.tril(
        torch.ones(layout.num_heads + 1, layout.num_heads, dtype=torch.bool), diagonal=-1
    )
    figure = masking.masked_at_each_step(
        layout, {"one by one": masks, "at once": masks[[0, -1]]}, most=4
    )
    assert len(figure.axes) == 4 + 1
    assert_nothing_is_clipped(figure)


def test_heads_are_sorted_by_the_first_value(layout):
    values = per_head(layout, "relevance", "confidence")
    figure = heads_figures.sorted_heads(layout, values)
    first = figure.axes[0].get_images()[0].get_array()
    for row, site in zip(first, layout.sites, strict=True):
        kept = row[: site.num_heads].tolist()
        assert kept == sorted(kept, reverse=True)
    assert_nothing_is_clipped(figure)


def test_the_others_clip_nothing(layout):
    heads = layout.num_heads
    marks = {name: torch.arange(heads) % (n + 2) == 0 for n, name in enumerate(LABELS[:7])}
    mixed = heads - int(torch.stack(list(marks.values())).any(0).sum())
    figure = heads_figures.functions(layout, marks, dict.fromkeys((*marks, "mixed"), "by a rule"))
    assert_nothing_is_clipped(figure)
    # a part for each function of a head; together they fill its cell
    coloured = [part for part in figure.axes[0].patches if part.get_linewidth() == 0]
    assert len(coloured) == sum(int(has.sum()) for has in marks.values()) + mixed and mixed
    # heads without one have a colour and a place in the legend, too, and every function a colour of
    # its own
    assert f"mixed ({mixed})\n  by a rule" in [
        text.get_text() for text in figure.axes[0].get_legend().get_texts()
    ]
    assert len({patch.get_facecolor() for patch in figure.axes[0].get_legend().get_patches()}) == 8
    assert sum(part.get_width() for part in coloured) == pytest.approx(heads)
    assert_nothing_is_clipped(
        maps.heat([0.2, 0.3, 0.5], [0.1, 0.4], "AUC 0.50 (0.20 to 0.80), p = 0.9", "heat")
    )
    share = {"low": 0.4, "high": 0.6, "accuracy": 0.5}
    rows = [
        {"kind": kind, "share": s, "heads": 3, **share}
        for kind in ("early", "late")
        for s in (0.0, 1.0)
    ]
    assert_nothing_is_clipped(masking.kinds_of_layers(rows, 0.1))
    pairs = {"pairs": 3, "above": 0.04, "chance_low": -0.02, "chance_high": 0.03, "p_holm": 0.01}
    grouped = [
        {"curve": c, "group_a": "before", "group_b": b, **pairs}
        for c in ("a", "b")
        for b in ("before", "at")
    ]
    assert_nothing_is_clipped(pairs_figures.groups_of_pairs(grouped))
    bands = [
        {
            "from": k / 3,
            "to": (k + 1) / 3,
            "accuracy": 0.5,
            "accuracy_low": 0.4,
            "accuracy_high": 0.6,
        }
        for k in range(3)
    ]
    made = frequencies.noise([bands[0], *bands], 0.5, 0.1)
    assert_nothing_is_clipped(made)
    (container,) = made.axes[0].containers  # every point shows its interval
    (whiskers,) = container.lines[2]
    assert [[y for _, y in ends] for ends in whiskers.get_segments()] == [
        pytest.approx([40, 60])
    ] * 3
    seen = [torch.rand(2, 4, 4) for _ in range(3)]
    assert_nothing_is_clipped(maps.fft_images([0, 1, 2], seen, seen, torch.rand(3, 8, 8)))
    points = [
        {"group": g, "curve": "c", "split": "test", "heads_masked": h, "runs": 3, **share}
        for g in "ab"
        for h in (0, 3)
    ]
    for score in known_scores().values():
        assert_nothing_is_clipped(
            runs.run_curves([{**point, "of": score.scored.right} for point in points])
        )
    assert_nothing_is_clipped(
        runs.run_agreement([{"measure": "entropy", "run_a": "a", "run_b": "b", "spearman": 0.5}])
    )


def scored(relation, way, who=""):
    return {"relation": relation, "way": way, "who": who, "score": 0.5, "low": 0.4, "high": 0.6}


def blocks(measure, network, block):
    return {
        "measure": measure,
        "network": network,
        "block": block,
        "min": -0.1,
        "mean": 0.2,
        "max": 0.9,
    }


def band(damage, low=""):
    return {
        "damage": damage,
        "from": low,
        "to": low and low + 0.5,
        "accuracy": 0.7,
        "accuracy_low": 0.6,
        "accuracy_high": 0.8,
    }


FREE = {  # figures that are no layout's
    "gate_density": lambda: gates.gate_density(
        {"log alpha = 2": torch.full((22,), 1 / 22)},
        (torch.tensor([0, 0.31, 1.0]), torch.full((22,), 1 / 22)),
    ),
    "relation_scores": lambda: attention.relation_scores(
        [
            scored(r, w, "block 11, head 11")
            for r in ("along an edge", "same colour")
            for w in ("best head", "even draw")
        ]
    ),
    "probes": lambda: attention.relation_scores(
        [scored("along an edge", f"attention and embedding {n}") for n in range(6)]
    ),
    "behaviours": lambda: pairs_figures.behaviours(
        [
            pairs_figures.Group(
                "stage 0: 2 clusters\np = 1",
                torch.randn(5, 2),
                ["CLS"] * 4 + ["local"],
                torch.arange(5) % 2,
            )
        ]
        * 3
    ),
    "landscape": lambda: training.landscape(
        [-1.0, 0.0, 1.0], [torch.rand(3, 3) + 1, torch.rand(3, 3) + 1]
    ),
    "a landscape with a loss that overflows": lambda: training.landscape(
        [-1.0, 0.0, 1.0], [torch.tensor([[1.0, 2, 3], [1, 2, torch.inf], [4, 5, 6]])]
    ),
    "classes_at_steps": lambda: classes.classes_at_steps(
        torch.rand(20, 10),
        torch.rand(20, 10) < 0.1,
        list(range(20)),
        ["a class with a very long name"] * 10,
    ),
    "phase": lambda: frequencies.phase(
        [band("none"), band("phase", 0.25), band("amplitude", 0.25)], [True], 0.1
    ),
    "kernels": lambda: maps.kernels(torch.randn(12, 6, 3, 4, 4), torch.full((12, 6), 1 / 6)),
    "before_training": lambda: pairs_figures.before_training(
        [blocks("cka", network, b) for network in ("trained", "untrained") for b in range(6)],
        {"cka": "linear CKA"},
    ),
    "pareto": lambda: pruned.pareto(
        [
            {
                "method": m,
                "budget": b,
                "seed": s,
                "flops": b,
                "pruned": b - 0.1 * s,
                "dense": 0.9,
                "speedup_64": 1 / b,
            }
            for m in ("fisher", "random")
            for b in (0.5, 0.8)
            for s in (0, 1)
        ]
    ),
    "surfaces": lambda: maps.surfaces(torch.rand(4, 5), torch.rand(3, 40), [0, 1, 2]),
    "a surface of one patch and one block": lambda: maps.surfaces(
        torch.rand(1, 1), torch.rand(1, 40), [7]
    ),
}


@pytest.mark.parametrize("name", FREE)
def test_figures_of_no_layout_clip_nothing(name):
    torch.manual_seed(0)
    if name == "surfaces":
        needs_matplotlib("3.11", "gives three dimensions a box of 37 inches in a figure of 7.4")
    assert_nothing_is_clipped(FREE[name]())


def test_each_cluster_of_a_large_swin_stage_has_its_shape():
    group = pairs_figures.Group(
        "8 clusters", torch.randn(9, 2), ["global"] * 9, torch.arange(9) % 8
    )
    lines = pairs_figures.behaviours([group]).axes[-1].get_lines()
    shapes = {
        line.get_label(): line.get_marker()
        for line in lines
        if str(line.get_label()).startswith("cluster")
    }
    assert len(shapes) == len(set(shapes.values())) == 8, (
        "the eighth cluster was a circle as the first"
    )


def test_marks_are_explained_in_the_figure():
    legend = [
        text.get_text() for text in FREE["before_training"]().axes[-1].get_legend().get_texts()
    ]
    assert legend == [
        "trained, mean of pairs",
        "untrained, mean of pairs",
        "least to greatest pair",
    ]
    assert (
        FREE["phase"]().axes[0].get_legend().get_texts()[-1].get_text()
        == "the two differ\n(p < .05, Holm)"
    )
    assert "share of what the head reads" in FREE["kernels"]().axes[0].get_title(loc="left")


def test_three_similarities_of_twelve_blocks_are_as_wide_as_a_screen():
    rows = [
        blocks(name, network, b)
        for name in "abc"
        for network in ("trained", "untrained")
        for b in range(12)
    ]
    figure = pairs_figures.before_training(rows, {name: f"likeness {name}" for name in "abc"})
    assert style.inches(figure)[0] < 10.5
    assert_nothing_is_clipped(figure)


def test_correspondence_counts_the_heads_that_stay_themselves(layout):
    columns = per_head(layout, "itself", "best_other", "chance")
    columns["corresponds"] = (columns["itself"] > columns["best_other"]).long()
    figure = maps.correspondence(layout, columns)
    assert (
        figure.axes[0]
        .get_title(loc="left")
        .startswith(f"{int(columns['corresponds'].sum())} of {layout.num_heads}")
    )
    assert_nothing_is_clipped(figure)


def test_what_attention_changes_has_one_scale_for_all_blocks():
    """A block that hardly changes anything looks like it."""
    before = torch.zeros(4, 4)
    before[2, 2] = 5.0
    small, large = before.clone(), before.clone()
    small[0, 0], large[0, 0] = 0.01, -2.0
    figure = maps.fft_images(
        [0, 1],
        torch.rand(2, 2, 4, 4),
        [torch.stack([before, each]) for each in (small, large)],
        torch.rand(3, 8, 8),
    )
    limits = {
        axes.images[0].get_clim()
        for axes in figure.axes[1:]
        if axes.images[0].get_cmap().name == "RdBu_r"
    }
    assert limits == {(-2.0, 2.0)}


@pytest.mark.parametrize(
    "kinds", [("a",), ("rollout, mean of heads", "gradient rollout", "relevance")]
)
def test_a_map_has_a_dot_per_score_and_one_without_an_image_is_grey(kinds):
    names, scores = (
        (*kinds, "centre", "random"),
        ("pixel accuracy", "mean IoU", "average precision"),
    )
    rows = [
        {
            "map": name,
            "score": score,
            "value": 0.3 + 0.1 * k,
            "low": 0.25 + 0.1 * k,
            "high": 0.36 + 0.1 * k,
        }
        for k, name in enumerate(names)
        for score in scores
    ]
    figure = maps.segmentation(rows)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(scores)
    for axes in figure.axes:
        dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
        assert [float(line.get_ydata()[0]) for line in dots] == list(range(len(names)))
        assert [float(line.get_xdata()[0]) for line in dots] == [
            row["value"] for row in rows[:: len(scores)]
        ]
        assert [line.get_color() == "0.5" for line in dots] == [
            name in ("centre", "random") for name in names
        ]
    assert_nothing_is_clipped(figure)
