"""What panels compute is what they say, on inputs whose answer is known."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mhprobe
from drawn import assert_nothing_is_clipped
from mhprobe.backbones.parts.timm_models import patch_embedding, stem_of
from mhprobe.data.batch import Batch
from mhprobe.data.draws import evenly_spread
from mhprobe.errors import UserError
from mhprobe.framework.questions.measured import measured
from mhprobe.gates.hard_concrete import HardConcrete
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.lab.papers import voita
from mhprobe.lab.papers.panels import maps as maps_panel
from mhprobe.lab.papers.panels.attention import around_the_favourite
from mhprobe.lab.papers.panels.clusters import alike, best_clusters, scaled
from mhprobe.lab.papers.panels.columns import functions, pairs_of_block
from mhprobe.lab.papers.panels.frequencies import (
    accuracies,
    log_amplitude,
    low_and_high,
    ring_noise,
    without,
)
from mhprobe.lab.papers.panels.kernels import rows_reached, slopes_of, strongest_kernels
from mhprobe.lab.papers.panels.loss import direction, eigenvalues, losses
from mhprobe.lab.papers.panels.maps import auc_interval, hottest, judged
from mhprobe.lab.papers.panels.masking import accuracy_by_class, masks_by_kind, phases
from mhprobe.lab.papers.panels.relations import (
    RELATIONS,
    Queries,
    mean_with_interval,
    offset_words,
    probe,
    right_keys,
    scored_answers,
)
from mhprobe.lab.papers.panels.two_views import between, other_way
from mhprobe.lab.papers.voita import Fitted
from mhprobe.maps.rollout import Rollout
from mhprobe.masking.base import Path
from mhprobe.masking.parts.trace import Curve, trace
from mhprobe.measures.object_attention import RELATIONS as RELATIONS_OF_OBJECTS
from mhprobe.measures.parts.moments import Moments
from mhprobe.measures.parts.places import Piece, places_of
from mhprobe.report import twins
from mhprobe.report.figures import correlations, gates, training
from mhprobe.report.figures.frequencies import noise as noise_figure
from mhprobe.report.figures.pairs import Group, behaviours
from mhprobe.report.result import Sample
from models import images_for, labels_for, tiny_swin, tiny_vit


def test_the_largest_eigenvalues_are_those_of_the_whole_hessian():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    images, labels = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    weights = [model.weight, model.bias]

    def loss(flat):
        weight, bias = flat[:12].view(3, 4), flat[12:]
        return cross_entropy(images @ weight.T + bias, labels)

    whole = torch.autograd.functional.hessian(
        loss, torch.cat([w.detach().flatten() for w in weights])
    )
    expected = torch.linalg.eigvalsh(whole).flip(0)[:2]
    found = eigenvalues(model, images, labels, weights, top=2, iterations=300)
    # power iteration converges like the ratio of two eigenvalues, 300 times
    torch.testing.assert_close(
        torch.tensor([value for value, _ in found]).double(), expected, rtol=1e-4, atol=1e-6
    )
    assert expected[0] > 1.05 * expected[1] and all(change < 1e-3 for _, change in found)
    assert all(weight.requires_grad and weight.grad is None for weight in weights)


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_transformer_has_a_curvature_along_its_slope(build):
    """The value is a Rayleigh quotient: no direction that is tried has a larger one."""
    model = build()
    mhprobe.attach(model)
    images, labels = images_for(model, 4), labels_for(4)
    weights = list(model.parameters())
    ((value, _),) = eigenvalues(model, images, labels, weights, iterations=30)
    ((few, _),) = eigenvalues(model, images, labels, weights, iterations=2)
    assert math.isfinite(value) and abs(value) >= 0.99 * abs(few)


def test_noise_is_in_its_ring_alike_in_every_batch_and_of_size_one():
    images = torch.zeros(3, 3, 16, 16)
    noise = ring_noise(images, torch.tensor([5, 6, 7]), ring=1, rings=4, seed=0)
    torch.testing.assert_close(
        noise.flatten(1).std(1, correction=0), torch.ones(3), rtol=1e-5, atol=0
    )
    alone = ring_noise(images[:1], torch.tensor([6]), ring=1, rings=4, seed=0)
    torch.testing.assert_close(alone[0], noise[1], rtol=1e-6, atol=1e-6)
    power = np.abs(np.fft.fft2(noise.double().numpy())) ** 2
    frequency = np.fft.fftfreq(16) * 2
    radius = np.hypot(frequency[:, None], frequency[None])
    outside = (radius <= 0.25) | (radius > 0.5)
    assert power[..., outside].sum() < 1e-9 * power.sum()


def test_a_blurred_map_has_less_high_frequency_than_a_sharp_one():
    torch.manual_seed(0)
    sharp = torch.randn(8, 8, dtype=torch.float64)
    smooth = (sharp + sharp.roll(1, 0) + sharp.roll(1, 1) + sharp.roll((1, 1), (0, 1))) / 4
    a, b = (low_and_high(log_amplitude(x)) for x in (sharp, smooth))
    assert b["high_half"] - b["low_half"] < a["high_half"] - a["low_half"]
    expected = np.fft.fftshift(np.log(np.abs(np.fft.fft2(sharp.numpy())) + 1e-6))
    np.testing.assert_allclose(log_amplitude(sharp).numpy(), expected, rtol=1e-9)


def test_heat_is_the_mass_of_the_hottest_tenth():
    even, spot = torch.ones(10, 10), torch.zeros(10, 10)
    spot[3, 4] = 2.0
    assert hottest(torch.stack([even, spot])).tolist() == pytest.approx([0.1, 1.0])
    assert hottest(torch.ones(1, 1, 17)).tolist() == pytest.approx(
        [2 / 17]
    )  # a tenth of 17 patches is nearer to two


def test_the_interval_of_an_auc_is_hanley_and_mcneils():
    """Their formula by hand: 0.8 with 50 and 60 images has a standard error of 0.0428."""
    q1, q2 = 0.8 / 1.2, 2 * 0.64 / 1.8
    error = math.sqrt((0.16 + 49 * (q1 - 0.64) + 59 * (q2 - 0.64)) / 3000)
    low, high = auc_interval(0.8, 50, 60)
    assert (high - low) / 2 == pytest.approx(1.959964 * error)
    # a perfect order of 5 and 5 images comes by luck, too: p = 2 / 252
    low, high = auc_interval(1.0, 5, 5)
    assert low == pytest.approx(1 - 1.959964 * 0.5 / 5) and high == 1


def test_scores_of_few_images_have_students_interval():
    from scipy import stats

    values = torch.tensor([0.2, 0.5, torch.nan, 0.3, 0.7])
    got, known = mean_with_interval(values), values[~values.isnan()].double().numpy()
    expected = stats.t.interval(0.95, 3, known.mean(), stats.sem(known))
    assert (got["low"], got["high"]) == pytest.approx((max(0, expected[0]), expected[1])) and got[
        "images"
    ] == 4
    assert mean_with_interval(torch.full((300,), 0.5))["low"] == 0.5


def test_kinds_of_layers_part_the_heads():
    vit = mhprobe.attach(tiny_vit(depth=6)).layout
    thirds = masks_by_kind(vit)
    assert (
        list(thirds) == ["early", "middle", "late"]
        and sum(thirds.values()).tolist() == [1] * vit.num_heads
    )
    swin = mhprobe.attach(tiny_swin()).layout
    found = masks_by_kind(swin)
    assert {"stage 0", "stage 1", "plain windows", "shifted windows"} <= set(found)
    assert (found["stage 0"] ^ found["stage 1"]).all() and (
        found["plain windows"] ^ found["shifted windows"]
    ).all()


class _Falls:
    """An evaluate function that loses its images at the third head."""

    images = 40

    def __call__(self, masks, images=None):
        from mhprobe.masking.base import Scores

        right = torch.ones(len(masks), 40, dtype=torch.bool)
        right[masks.sum(1) >= 3] = False
        return Scores(right, torch.zeros(len(masks), 40, dtype=torch.float64))


def test_heads_fall_before_at_and_behind_the_drop():
    path = Path(None, torch.eye(6, dtype=torch.bool)[[4, 2, 0, 1]], ("a", "b", "c", "d"))
    curve = Curve("c", "test", "", "validation", False, trace([path], _Falls()))
    found = {name: mask.nonzero().flatten().tolist() for name, mask in phases(curve).items()}
    assert found == {"before": [2, 4], "at": [0], "kept": [1, 3, 5]}


def test_sharpness_is_drawn():
    rows = [
        {"part": part, "rank": 1, "eigenvalue": value}
        for part, value in (("all", 9.0), ("blocks.0", -1.0))
    ]
    assert_nothing_is_clipped(training.sharpness(rows))


def test_the_distribution_of_gates_is_drawn_whole():
    shares = {
        f"log alpha {a}": torch.full((gates.BINS + 2,), 1 / (gates.BINS + 2)) for a in (-2, 0, 2)
    }
    assert_nothing_is_clipped(gates.gate_density(shares, (torch.rand(72), shares["log alpha 0"])))


def test_the_bins_of_a_hard_concrete_gate_hold_what_is_drawn():
    """Against 200,000 draws of the gate itself: four standard errors of a share are below 0.0045."""
    torch.manual_seed(0)
    distribution = HardConcrete()
    u = torch.rand(200_000, dtype=torch.float64)
    for log_alpha in (-2.0, 0.5, 2.0):
        drawn = distribution.sample(torch.tensor(log_alpha), u.log() - (-u).log1p())
        (share,) = distribution.binned(torch.tensor([log_alpha]), gates.BINS)
        assert share.sum().item() == pytest.approx(1)
        torch.testing.assert_close(gates.histogram(drawn), share, rtol=0, atol=0.0045)
        assert share[0].item() == pytest.approx(
            1 - distribution.p_open(torch.tensor(log_alpha)).item(), abs=1e-6
        )


def test_a_head_may_have_several_functions_and_objects_are_one_where_there_are_masks():
    layout = HeadLayout((HeadSite("a", 0, 0, 4, 3),))
    columns = {
        "position": {"value": torch.tensor([1.0, 0, 0, 1])},
        "rarity": {"value": torch.tensor([0.3, 0.1, 0.3, 0.1]), "chance": torch.full((4,), 0.1)},
        "object_attention": {
            "value": torch.tensor([0.1, 0.7, 0.6, 0.59]),
            "chance": torch.full((4,), 0.4),
        },
    }
    made = functions(told(layout, columns))["functions"]
    rows = [dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows]
    assert [row["object"] for row in rows] == [0, 1, 1, 0] and rows[0]["threshold_object"] == 1.5
    assert [row["rare"] for row in rows] == [1, 0, 1, 0] and [
        row["positional"] for row in rows
    ] == [1, 0, 0, 1]
    assert_nothing_is_clipped(made.figure)
    del columns["object_attention"]
    assert "object" not in functions(told(layout, columns))["functions"].table.columns


def told(layout, columns, about=None):
    """Material whose columns are known, of measures without a control."""
    return SimpleNamespace(
        layout=layout,
        names=list(columns),
        columns=columns.__getitem__,
        control=lambda name: None,
        about=lambda name: about,
        slopes_of="loss",
    )


SAYS = {
    "unit": "",
    "along": {},
    "larger": "",
    "alike": "largest",
    "masks": False,
    "about": "",
    "of_images": True,
    "empty": "",
}


def test_a_table_stays_where_its_figure_has_the_same_name():
    """object_attention has a column ``relations``, and a figure of that name."""
    layout = HeadLayout((HeadSite("a", 0, 0, 2, 3), HeadSite("b", 0, 1, 2, 3)))
    names = list(RELATIONS_OF_OBJECTS)
    shares = torch.arange(16.0, dtype=torch.float64).view(4, 4) / 16
    by_relation = (
        "relations",
        "offset",
        "even",
        "relations_held_out",
        "relations_low",
        "relations_high",
    )
    columns = dict.fromkeys(by_relation, shares)
    about = SimpleNamespace(
        kind="per_head",
        also=("relations",),
        label="share",
        axes={key: names for key in columns},
        needs=set(),
        layout=layout,
        **SAYS,
    )
    columns = {"value": shares[:, 0], **columns}
    made = measured(told(layout, {"objects": columns}, about), kinds=["relations"])[
        "objects_relations"
    ]
    assert made.figure is not None and made.table is not None and len(made.table.rows) == 4


def test_voitas_two_arms_are_compared_image_by_image():
    pruned = torch.tensor([True] * 70 + [False] * 30)
    scratch = torch.tensor([True] * 60 + [False] * 10 + [True] * 2 + [False] * 28)
    arms = [
        Fitted({"gates/binary_accuracy": 0.69, "test/accuracy": a}, b)
        for a, b in ((0.7, pruned), (0.62, scratch))
    ]
    row = voita._compared(3, *arms, 5, 5)
    assert (row.pruned, row.pruned_gates_as_learned, row.scratch) == (0.69, 0.7, 0.62)
    assert row.delta == pytest.approx(-0.08) and row.delta_low < row.delta < row.delta_high < 0
    assert row.p == pytest.approx(
        2 * sum(math.comb(12, k) for k in range(3)) / 2**12
    )  # the sign test, by hand
    same = voita._compared(3, arms[0], arms[0], 5, 5)
    assert same.delta == 0 and same.p == 1


def test_relations_are_right_for_the_keys_that_they_name():
    """A picture of 4 x 4 patches: left half dark, right half bright, so that an edge runs down its middle."""
    picture = torch.zeros(1, 3, 16, 16)
    picture[..., 7:] = 1.0  # the edge lies inside the second column of patches
    centres = torch.tensor([[0.0, 0, 0], [1.0, 1, 1]], dtype=torch.float64)
    right = dict(zip(RELATIONS, right_keys(picture, (4, 4), centres)[0], strict=True))
    keys = {
        name: set(of[5].nonzero().flatten().tolist()) for name, of in right.items()
    }  # row 1, column 1
    assert keys["mirror image"] == {6} and keys["opposite"] == {10}
    assert keys["same colour"] == {0, 1, 4, 8, 9, 12, 13}  # column 1 is a quarter bright
    assert keys["along an edge"] == {1, 9}  # above and below
    assert not right["along an edge"][0].any()  # no edge in the first column
    assert not any(of.diagonal().any() for of in right.values())


def test_every_pair_of_blocks_has_its_own_chance():
    """Two pairs of stages with 5 and 9 coefficients: a mean over both would jump where the shorter ends."""
    layout = mhprobe.attach(tiny_swin()).layout
    blocks = len(layout.sites)
    rho = torch.linspace(1, 0, 9, dtype=torch.float64).repeat(blocks, blocks, 1)
    rho[0, 1, 5:] = torch.nan
    figure = correlations.block_coefficients(layout, {"rho": rho, "null_rho": 0.2 * rho}, "")
    for axes in figure.axes:
        drawn = [line for line in axes.lines if len(line.get_xdata())]
        chance = [line for line in drawn if line.get_linestyle() == ":"]
        assert len(chance) == len(drawn) / 2
        assert all((np.diff(line.get_ydata()) < 0).all() for line in drawn)
    assert [text.get_text() for text in figure.axes[-1].get_legend().get_texts()][-1] == "chance"


@pytest.mark.parametrize(
    ("draw", "pairs", "drawn"),
    [
        (
            correlations.block_coefficients,
            [[0, 1], [0, 3]],
            ["block 0 and\nblock 1", "block 0 and\nblock 3"],
        ),
        (correlations.coefficients, [[0, 1]], ["head 0 of block 0 and\nhead 1 of block 0"]),
    ],
)
def test_pairs_can_be_chosen_and_one_that_was_not_compared_is_refused(draw, pairs, drawn):
    layout = mhprobe.attach(tiny_swin()).layout
    count = len(layout.sites) if draw is correlations.block_coefficients else layout.num_heads
    rho = torch.full((count, count, 4), torch.nan, dtype=torch.float64)
    for number, (a, b) in enumerate([*pairs, (1, 0)]):
        rho[a, b, :3] = torch.tensor([0.9, 0.8, 0.7]) - 0.1 * number
    columns = {"rho": rho, "null_rho": 0.2 * rho}
    figure = draw(layout, columns, "", pairs=pairs)
    lines = {
        line.get_label(): line.get_ydata()
        for line in figure.axes[0].lines
        if line.get_linestyle() == "-"
    }
    assert list(lines) == drawn
    for (a, b), found in zip(pairs, lines.values(), strict=True):
        assert list(found) == rho[a, b, :3].tolist()
    assert_nothing_is_clipped(figure)
    for wrong in (
        [0, count],
        [1, 1],
        [0],
        0,
        [0, "1"],
        [1, 2],
    ):  # of the last one nothing was measured
        with pytest.raises(
            UserError,
            match=rf"coefficients\.pairs: expected .* 0 to {count - 1} .* got {re.escape(str(wrong))}",
        ):
            draw(layout, columns, "", pairs=[wrong])


def test_options_reach_the_kind_that_they_are_of(monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        twins, "draw_measure", lambda kind, *_, **options: drawn.update({kind: options})
    )
    layout = mhprobe.attach(tiny_vit()).layout
    about = SimpleNamespace(
        kind="per_head", also=(), label="", axes={}, needs=set(), layout=layout, **SAYS
    )
    value = torch.zeros(layout.num_heads)
    asked = {
        "kinds": ["a", "b"],
        "options": {"limits": "each"},
        "options_of": {"b": {"pairs": [[0, 1]]}},
    }
    measured(told(layout, {"m": {"value": value}}, about), **asked)
    assert drawn == {"a": {"limits": "each"}, "b": {"limits": "each", "pairs": [[0, 1]]}}


def test_the_legend_of_noise_hides_no_point():
    bands = [{"from": k / 6, "to": (k + 1) / 6, "accuracy": 0.4} for k in range(6)]
    rows = [{**band, "accuracy_low": 0.3, "accuracy_high": 0.5} for band in bands]
    figure = noise_figure([rows[0], *rows], 0.5, 0.1)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    assert_nothing_is_clipped(figure)


def test_an_offset_is_said_in_words():
    site = mhprobe.attach(tiny_vit()).layout.sites[0]
    wide = 2 * site.token_grid[1] - 1
    centre = (site.token_grid[0] - 1) * wide + site.token_grid[1] - 1
    told = {0: "itself", -1: "1 left", 1: "1 right", wide: "1 down", -2 * wide + 1: "2 up, 1 right"}
    assert {step: offset_words(centre + step, site) for step in told} == told


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_head_that_looks_at_its_partner_follows_that_relation_alone(build):
    """Partners are the columns 0 and 1, 2 and 3, ...: no fixed offset is right for more than half of the queries."""
    layout = mhprobe.attach(build()).layout
    site = layout.sites[0]
    places, (tall, wide) = places_of(site, torch.device("cpu")), site.token_grid
    cell = torch.arange(tall * wide)
    partner, below = cell - cell % wide + (cell % wide ^ 1), cell + wide
    right = torch.zeros(1, 2, tall * wide, tall * wide, dtype=torch.bool)
    right[
        0,
        0,
        cell[partner < (cell // wide + 1) * wide],
        partner[partner < (cell // wide + 1) * wide],
    ] = True
    right[0, 1, cell[:-wide], below[:-wide]] = True  # control: the patch below
    token = (places.token - site.prefix_tokens).clamp(min=0)
    looks = right[0, 0][token[:, :, None], token[:, None]] & places.patch_pairs
    attn = torch.rand(1, len(token), 1, *looks.shape[1:], dtype=torch.float64) * 0.1
    attn[0, :, 0] += looks
    piece = Piece(0, slice(0, 1), site, places, torch.tensor([0]), torch.tensor([0]), attn)
    (partners, offsets, even), (control, down, _) = scored_answers(piece, right)
    assert partners.item() == 1 and control.item() < 0.2
    assert (
        even.item() < 0.5
        and offsets.max().item() == pytest.approx(0.5)
        and down.max().item() == pytest.approx(1)
    )


def test_a_probe_finds_the_head_that_knows_and_guesses_where_none_does():
    generator = torch.Generator().manual_seed(0)
    keys, itself = 9, torch.eye(9, dtype=torch.bool)[torch.arange(240) % 9]

    def queries(knows):
        answer = (torch.arange(240) * 5 + 1 + torch.arange(240) // 9) % keys
        answer = torch.where(answer == torch.arange(240) % 9, (answer + 1) % keys, answer)
        right = torch.nn.functional.one_hot(answer, keys).bool()
        features = torch.rand(240, keys, 4, generator=generator)
        features[..., 2] += 3 * knows * right
        facts = torch.rand(240, keys, 3, generator=generator)
        return Queries(
            features, facts, right[..., None], torch.zeros(240, keys), torch.arange(240), itself
        )

    for knows, low, high in ((1, 0.95, 1), (0, 0.02, 0.3)):  # chance is 1 of 8
        fit, test = queries(knows), queries(knows)
        for embedded in (False, True):
            best = probe(fit, test, 0, steps=60, embedded=embedded).argmax(1)
            assert low <= test.right[torch.arange(240), best, 0].double().mean() <= high


def test_clusters_are_found_where_there_are_some_and_doubted_where_there_is_one_cloud():
    torch.manual_seed(0)
    cloud = torch.randn(30, 3, dtype=torch.float64)
    apart = cloud * 0.2 + 4 * torch.nn.functional.one_hot(torch.arange(30) % 3, 3)
    found, doubted = (
        best_clusters(torch.cdist(points, points), draws=39, seed=0) for points in (apart, cloud)
    )
    number, silhouette, p = found
    assert int(number.max()) == 2 and p == 1 / 40 and silhouette > 0.8
    assert len({tuple(number[k::3].tolist()) for k in range(3)}) == 3  # each of the three, whole
    assert doubted[2] > 0.05
    torch.testing.assert_close(
        torch.cdist(*[scaled(torch.cdist(cloud, cloud))] * 2), torch.cdist(cloud, cloud)
    )
    does = [("a", "b", "c")[k % 3] for k in range(30)]
    distance = torch.cdist(apart, apart)
    together, p = alike(distance, does, permutations=99, seed=0)
    assert together > 0.8 and p == 0.01
    assert (
        alike(distance, sorted(does), permutations=99, seed=0)[1] > 0.05
    )  # each function in each cluster


def test_the_legend_of_clustered_heads_names_functions_and_clusters():
    points, cluster_N = torch.randn(4, 2), torch.tensor([0, 1, 1, 2])
    figure = behaviours(
        [Group("all heads", points, ["global", "local", "local", "global"], cluster_N)]
    )
    named = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert sorted(named) == ["cluster 1", "cluster 2", "cluster 3", "global", "local"]


def test_the_loss_landscape_is_the_loss_at_moved_weights_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    images, labels = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    before = [weight.clone() for weight in model.parameters()]
    a, b = direction(model, 0), direction(model, 1)
    torch.testing.assert_close(a[0].norm(dim=1), model.weight.detach().norm(dim=1))
    assert not a[1].any() and (a[0] != b[0]).all()  # the bias stays
    found = losses(model, images, labels, [-0.5, 0.0, 0.5], [a, b])
    moved = model.weight - 0.5 * a[0] + 0.5 * b[0]
    assert found[0, 2].item() == pytest.approx(
        cross_entropy(images @ moved.T + model.bias, labels).item()
    )
    assert found[1, 1].item() == pytest.approx(cross_entropy(model(images), labels).item())
    assert all(torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))


def test_a_loss_near_nothing_is_not_rounded_to_nothing():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(25 * torch.eye(2))
        model.bias.zero_()
    still = direction(model, 0)
    found = losses(model, torch.eye(2), torch.arange(2), [0.0], [still, still])
    assert found.item() == pytest.approx(math.log1p(math.exp(-25)), rel=1e-6)  # float32 would say 0


def test_damaged_rings_are_compared_image_by_image():
    """Predictions that are given: drops are paired, from the whole images and from one damage to the other."""
    labels = torch.zeros(40, dtype=torch.long)
    wrong = {0: range(4), 1: range(12), 2: range(8, 20)}  # whole, and two ways to damage
    shown = {way: torch.zeros(40, 2) for way in wrong}
    for way, images in wrong.items():
        shown[way][list(images), 1] = 1.0
    batches = [
        Batch(shown[0][part], labels[part], torch.arange(40)[part], torch.arange(40)[part] < 39)
        for part in (slice(0, 15), slice(15, 40))
    ]

    def damaged(batch, way):
        return shown[way][batch.index]

    model = type("Given", (), {"device": "cpu", "__call__": lambda self, images: images})()
    material = SimpleNamespace(model=model, walk=lambda images: lambda: batches)
    found = accuracies(material, [{}] * 3, damaged, images=40)
    assert [row["accuracy"] for row in found.rows] == [35 / 39, 27 / 39, 27 / 39]
    assert found.rows[0]["p"] == found.rows[0]["drop"] == "" and found.rows[1]["images"] == 39
    assert found.rows[1]["drop"] == found.rows[2]["drop"] == 8 / 39
    assert found.rows[1]["p"] == pytest.approx(2 / 2**8)  # 8 lost, none won
    assert found.rows[2]["p"] == pytest.approx(
        2 * sum(math.comb(16, k) for k in range(5)) / 2**16
    )  # 12 lost, 4 won
    assert [row["p_holm"] for row in found.rows[1:]] == pytest.approx(
        [2 * 2 / 2**8, found.rows[2]["p"]]
    )
    assert (
        found.rows[1]["drop_low"] > found.rows[2]["drop_low"]
    )  # as many images less, but fewer that differ
    each = found.drop(torch.tensor([1]), torch.tensor([2]))
    assert each["drop"].item() == 0 and each["drop_low"].item() < 0 < each["drop_high"].item()


def test_a_ring_loses_its_phases_or_its_amplitudes_and_nothing_else():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    whole = torch.fft.fft2(images)
    frequency = np.fft.fftfreq(16) * 2
    radius = np.hypot(frequency[:, None], frequency[None])
    inside = torch.from_numpy((radius > 0.25) & (radius <= 0.5))
    for damage, kept, lost in (
        ("phase", torch.abs, torch.angle),
        ("amplitude", torch.angle, torch.abs),
    ):
        found = torch.fft.fft2(
            without(images, torch.tensor([3, 9]), damage, ring=1, rings=4, seed=0)
        )
        torch.testing.assert_close(found[..., ~inside], whole[..., ~inside])
        torch.testing.assert_close(kept(found[..., inside]), kept(whole[..., inside]))
        assert (lost(found[..., inside]) - lost(whole[..., inside])).abs().median() > 0.1
        energy = [each[..., inside].abs().square().sum() for each in (found, whole)]
        torch.testing.assert_close(*energy)
    alone = without(images[1:], torch.tensor([9]), "phase", ring=1, rings=4, seed=0)
    torch.testing.assert_close(
        alone, without(images, torch.tensor([3, 9]), "phase", ring=1, rings=4, seed=0)[1:]
    )


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_covering_map_is_what_a_loop_over_queries_adds_up(build):
    layout = mhprobe.attach(build()).layout
    number = len(layout.sites) - 1
    site = layout.sites[number]
    places = places_of(site, torch.device("cpu"))
    torch.manual_seed(0)
    attn = torch.rand(1, len(places.token), 2, *places.pairs.shape[1:], dtype=torch.float64)
    tall, wide = (2 * side - 1 for side in site.token_grid)
    mass, queries = around_the_favourite(
        Piece(
            number, layout.span(number), site, places, torch.tensor([0]), torch.tensor([0]), attn
        ),
        (tall, wide),
    )
    expected, seen = torch.zeros_like(mass), torch.zeros_like(mass)
    for window, query in places.patch.nonzero().tolist():
        keys = places.patch_pairs[window, query].nonzero().flatten()
        for head in range(2):
            row = attn[0, window, head, query, keys]
            cells = places.cell[window, keys]
            offset = cells - cells[row.argmax()] + torch.tensor([tall // 2, wide // 2])
            for (y, x), value in zip(offset.tolist(), (row / row.sum()).tolist(), strict=True):
                expected[head, y, x] += value
                seen[head, y, x] += 1
    torch.testing.assert_close(mass, expected)
    torch.testing.assert_close(queries, seen)


def test_a_covering_map_of_even_attention_is_as_far_to_the_left_as_to_the_right():
    """Every key is the favourite of an even row, not the first one, the upper left corner, alone."""
    layout = mhprobe.attach(tiny_vit()).layout
    site = layout.sites[0]
    places = places_of(site, torch.device("cpu"))
    attn = torch.full(
        (1, 1, 3, len(places.token[0]), len(places.token[0])), 0.5, dtype=torch.float64
    )
    piece = Piece(0, layout.span(0), site, places, torch.tensor([0]), torch.tensor([0]), attn)
    mass, queries = around_the_favourite(piece, tuple(2 * side - 1 for side in site.token_grid))
    torch.testing.assert_close(mass, mass.flip(1, 2))
    torch.testing.assert_close(queries, queries.flip(1, 2))
    assert mass[..., 0, 0].min() > 0


def test_attention_without_a_matrix_is_refused_with_the_reason():
    xcit = timm.create_model(
        "xcit_nano_12_p16_224", embed_dim=16, depth=1, num_heads=2, img_size=32, num_classes=3
    )
    mhprobe.attach(xcit)  # it has heads, and no attention between patches to roll out
    with pytest.raises(UserError, match="channels"):
        Rollout()(xcit, torch.zeros(1, 3, 32, 32))

    class HydraAttention(nn.Module):
        pass

    with pytest.raises(UserError, match="adds up keys times values before any query is seen"):
        mhprobe.attach(nn.Sequential(HydraAttention()))


def test_a_map_of_what_is_read_beats_random_orders_over_many_images_and_its_opposite_loses():
    class ReadsOnePatch(nn.Module):
        def forward(self, x):
            bright = x[:, 0, :2, 2:4].mean((1, 2))
            return torch.stack([bright, -bright], 1)

    def truth(model, images, labels):
        where = torch.zeros(len(images), 4, 4)
        where[:, 0, 1] = 1
        return {"one head": where, "another": where}  # judged by their mean

    def opposite(model, images, labels):
        return {"map": 1 - truth(model, images, labels)["one head"]}

    torch.manual_seed(0)
    pixels = torch.rand(12, 3, 8, 8)
    pixels[:, 0, :2, 2:4] += 3
    valid = torch.ones(12, dtype=torch.bool)
    valid[7] = False  # a padded one does not count
    batch = Batch(pixels, torch.arange(12), torch.arange(12), valid)
    material = SimpleNamespace(
        backbone=ReadsOnePatch(),
        walk=lambda images: lambda: [batch],
        of=Sample,
        seed=0,
        first=False,
    )
    table = judged(material, {"truth": truth, "opposite": opposite}, images=12)["areas"].table
    rows = {
        (row["map"], row["area"]): row
        for row in (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    }
    for area in ("deletion", "insertion"):
        good, bad = rows["truth", area], rows["opposite", area]
        assert good["images"] == bad["images"] == 11
        assert good["low"] > 0 > bad["high"]
        assert good["better"] == pytest.approx(abs(good["score"] - good["random"]))


def test_a_map_is_judged_against_random_orders_of_the_same_image(monkeypatch):
    """Images differ by far more than the map gains; it gains the same on each, so that its interval has no width."""
    random = torch.linspace(0, 1, 9, dtype=torch.float64)
    areas = torch.stack([random - 0.1, random + 0.2, random, random], 1)[:, None]
    monkeypatch.setattr(maps_panel, "areas_of", lambda *_, **options: areas)
    deletion, insertion = judged(SimpleNamespace(seed=0), {"map": None})["areas"].table.dicts()
    for row, gain in ((deletion, 0.1), (insertion, 0.2)):
        assert [row[name] for name in ("better", "low", "high")] == pytest.approx(
            [gain] * 3, abs=1e-9
        )


def test_images_spread_over_a_split_are_of_several_classes():
    assert (
        evenly_spread(3, 900) == [150, 450, 750]
        and evenly_spread(5, 2) == [0, 1]
        and evenly_spread(1, 1) == [0]
    )


def test_the_kernels_of_a_head_are_the_patterns_that_it_reads():
    """A head whose two value rows read two known patterns, the first twice as strongly."""
    patterns = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
    pixels = patterns.view(12, 3, 2, 2)  # channel c of the embedding reads pattern c
    value = torch.zeros(1, 2, 12, dtype=torch.float64)
    value[0, 0, 3], value[0, 1, 7] = 2.0, 1.0
    strength, found = strongest_kernels(value, pixels, count=2)
    torch.testing.assert_close(strength, torch.tensor([[2.0, 1.0]], dtype=torch.float64))
    for number, channel in enumerate((3, 7)):
        overlap = (found[0, number] * pixels[channel]).sum().abs().item()
        assert overlap == pytest.approx(1)
        assert found[0, number].flatten()[found[0, number].abs().argmax()] > 0


def test_a_convolution_reads_by_its_weights_and_a_stem_by_the_mean_of_its_slopes():
    """A network of ReLUs that all images leave open is linear: its slope is known, and the same for all images."""
    images = torch.rand(5, 3, 8, 8)
    convolution = nn.Conv2d(3, 4, 2, stride=2)
    mean, second = slopes_of(convolution, images)
    torch.testing.assert_close(mean, convolution.weight.detach().double())
    torch.testing.assert_close(second.trace(), mean.square().sum())  # one map for all images

    stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 4, 3, 2, 1))
    assert rows_reached(stem, 1) == slice(
        1, 8
    )  # 3 pixels of the middle map from 1, each of 3 pixels, 2 apart
    mean, second = slopes_of(stem, images)
    assert mean.shape == (4, 3, 7, 7) and second.trace() > 1.001 * mean.square().sum()
    stem[0].bias.data += 100  # never closed
    mean, second = slopes_of(stem, images, at_once=2)
    torch.testing.assert_close(second.trace(), mean.square().sum())
    inside = torch.zeros(1, 3, 8, 8)
    inside[0, 1, 3, 5] = 1
    with torch.inference_mode():
        step = (stem(inside) - stem(torch.zeros_like(inside)))[0, :, 1, 1]
    torch.testing.assert_close(
        mean[:, 1, 2, 4].float(), step, rtol=1e-3, atol=1e-4
    )  # a bias of 100 rounds


def test_what_embeds_patches_is_a_convolution_or_a_stem():
    with pytest.raises(UserError, match="nor by a stem"):
        patch_embedding(nn.Conv2d(3, 8, 3))
    for swin in (tiny_swin(), tiny_swin(embed_layer=stem_of([8]))):
        assert (
            patch_embedding(swin)(torch.zeros(1, 3, 18, 18)).shape[2:] == swin.patch_embed.grid_size
        )


def test_heads_across_views_are_aligned_as_the_definition_says():
    """Linear CKA written out on the rows: ||Y'X||^2 / (||X'X|| ||Y'Y||), centred."""
    torch.manual_seed(0)
    one, other = (
        torch.randn(50, 3, 4, dtype=torch.float64) + 1 for _ in "ab"
    )  # 3 heads of width 4
    other[:, 1] = (
        one[:, 2] @ torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    )  # head 2 has become head 1
    both = torch.cat([one.flatten(1), other.flatten(1)], 1)
    moments = Moments.zeros(1, 24)
    moments.add(both)
    found = between(moments, heads=3)
    for a in range(3):
        for b in range(3):
            x, y = (part[:, head] - part[:, head].mean(0) for part, head in ((one, a), (other, b)))
            expected = (y.mT @ x).norm() ** 2 / ((x.mT @ x).norm() * (y.mT @ y).norm())
            assert found[a, b].item() == pytest.approx(expected.item())
    assert found[2, 1].item() == pytest.approx(1) and found[2].argmax() == 1
    site = mhprobe.attach(tiny_swin()).layout.sites[0]
    rows = torch.randn(2, math.prod(site.token_grid), 5)
    torch.testing.assert_close(other_way(other_way(rows, site), site), rows)
    assert torch.equal(other_way(rows, site)[:, 0], rows[:, site.token_grid[1] - 1])


def test_pairs_of_a_block_are_counted_once_and_without_the_head_itself():
    value = torch.arange(16.0).view(4, 4)
    assert pairs_of_block(value, slice(1, 4)).tolist() == [6, 7, 11]
    value[1, 2] = torch.nan
    assert pairs_of_block(value, slice(1, 4)).tolist() == [7, 11]


def test_classes_fall_where_their_images_are_lost():
    """Two classes of 20 images; at the second step class 0 loses 10 images that it had."""
    labels = torch.arange(40) % 2
    right = torch.ones(3, 40, dtype=torch.bool)
    right[:, labels == 1] = False
    right[2, labels.eq(0).nonzero().flatten()[:10]] = False
    accuracy, p, p_holm = accuracy_by_class(right, labels, classes=3)
    assert accuracy[:, :2].tolist() == [[1, 0], [1, 0], [0.5, 0]] and accuracy[:, 2].isnan().all()
    assert p[2, 0].item() == pytest.approx(
        2 / 2**10
    )  # the sign test of ten images lost and none won
    assert p_holm[2, 0].item() == pytest.approx(4 * 2 / 2**10)  # two steps of two classes
    assert p[:2, :2].eq(1).all() and p_holm[0].eq(1).all()


def test_the_median_heat_of_an_even_number_of_images_lies_between_the_two_middle_ones(monkeypatch):
    heats = torch.tensor([[0.1, 1.0], [0.3, 1.0], [0.2, 0.0], [0.6, 0.0]], dtype=torch.float64)
    monkeypatch.setattr(maps_panel, "heats_of", lambda *_: heats)
    (result,) = maps_panel.heat(SimpleNamespace(of=lambda images: images), images=4).values()
    row = dict(zip(result.table.columns, result.table.rows[0], strict=True))
    assert (row["median_right"], row["median_wrong"]) == pytest.approx((0.2, 0.4))
