"""SnapViT: slopes and evolution against slow ones, no label is asked, and no set of as many heads looks more alike."""

from __future__ import annotations

import itertools

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import KINDS
from mhprobe.pruning.rounds import ShownChooser, prune
from mhprobe.pruning.snapvit import AREA, SnapViT, cheapest, cropped, evolved, slopes
from mhprobe.scoring import base
from mhprobe.scoring.base import looked
from mhprobe.scoring.cosine import Cosine
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.scoring.top1 import Top1
from mhprobe.surgery.costs import count_flops
from models import tiny_swin, tiny_vit
from oracles import snapvit as oracle
from pruned import COUNT, shown, spared


@pytest.mark.parametrize("swin", [False, True])
def test_slopes_are_those_of_one_image_and_crop_at_a_time(swin):
    model, _, judge = shown(KINDS, (tiny_swin() if swin else tiny_vit()).double())
    gates = gates_of(model)
    whole, index = judge.selection.data.images[:5], torch.arange(5)
    crops = [cropped(whole, index, key) for key in (0, 1)]
    found = slopes(model, whole, crops).square().mean(0)
    expected = oracle.squared_slopes(model, gates.values.requires_grad_(), whole, crops)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-15)  # gates are float32
    assert expected.std() > 0.1 * expected.mean() > 0  # the control: units do differ
    gates.values.requires_grad_(False)
    with gates.masked([1]):
        assert slopes(model, whole, crops)[:, 1].eq(0).all()  # what is off lets nothing through


def test_neither_batches_nor_labels_change_what_it_says():
    model, layout, judge = shown({"head"})
    method = SnapViT(crops=2, generations=1, levels=1)
    slopes_A, mask = (
        method.within_layers(model, judge.selection),
        method.choose(model, judge, {"flops": 0.8}),
    )
    judge.selection.data.labels, judge.selection.data.batch_size = (
        torch.zeros(COUNT, dtype=torch.long),
        7,
    )
    torch.testing.assert_close(
        method.within_layers(model, judge.selection), slopes_A, rtol=1e-5, atol=0
    )
    assert (
        method.choose(model, judge, {"flops": 0.8}).equal(mask)
        and 0 < int(mask.sum()) < layout.num_heads
    )
    assert (
        not SnapViT(crops=2, seed=1)
        .within_layers(model, judge.selection)
        .allclose(slopes_A, rtol=1e-2)
    )  # the control


def test_crops_lie_inside_and_have_the_area_that_is_said():
    """An image of its own coordinates says where each crop was taken."""
    line = (torch.arange(64) + 0.5) / 64
    place = torch.stack(
        [line.expand(64, 64), line[:, None].expand(64, 64), torch.zeros(64, 64)]
    ).expand(500, -1, -1, -1)
    crop = cropped(place, torch.arange(500), key=3)
    across, down = crop[:, 0, 0, -1] - crop[:, 0, 0, 0], crop[:, 1, -1, 0] - crop[:, 1, 0, 0]
    area = across.abs() * down
    assert crop.min() >= 0 and crop.max() <= 1
    # from the middle of the first to that of the last pixel: 63 of 64 parts of a side
    assert area.min() > AREA[0] * 0.95 and area.max() < AREA[1] and 0.5 < area.mean() < 0.7
    assert 0.4 < float((across < 0).float().mean()) < 0.6
    torch.testing.assert_close(across.abs(), down, rtol=0.05, atol=0)
    assert cropped(place[7:8], torch.tensor([7]), key=3).equal(crop[7:8])


def test_generations_are_those_of_slow_xnes():
    seen, count, size = [], 4 + int(3 * torch.tensor(3.0).log()), 3

    def fitness(points):
        seen.append(points)
        return -((points - 2) ** 2).sum(1)

    best = evolved(fitness, size, 3, seed=5)
    generator = torch.Generator().manual_seed(5)
    noise = [torch.randn(count, size, generator=generator, dtype=torch.float64) for _ in range(3)]
    mean, covariance = oracle.xnes(
        lambda point: -float(((point - 2) ** 2).sum()), torch.stack(noise[:2]).numpy()
    )
    points = seen[3]  # 0 alone, then three generations: the last are drawn from what two have made
    torch.testing.assert_close(
        points.mean(0) - torch.from_numpy(mean), _spread(points, noise[2], covariance)
    )
    tried = torch.cat(seen)
    assert best.equal(tried[fitness(tried).argmax()]) and tried[0].eq(0).all()


def _spread(points, noise, covariance):
    """What the mean of these draws adds, and that their spread has the covariance."""
    spread = torch.linalg.lstsq(noise - noise.mean(0), points - points.mean(0)).solution.mT
    torch.testing.assert_close(spread @ spread.mT, torch.from_numpy(covariance))
    return spread @ noise.mean(0)


def test_it_comes_nearer_to_an_optimum_than_as_many_random_points():
    """A narrow valley in six directions; 30 generations of 9."""
    width = torch.logspace(-1, 1, 6, dtype=torch.float64)

    def fitness(points):
        return -(((points - 1.5) / width) ** 2).sum(1)

    random = torch.randn(9 * 30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seed in range(3):
        assert fitness(evolved(fitness, 6, 30, seed)[None]) > 0.2 * fitness(random).max()


def test_masks_take_the_cheapest_until_enough_is_saved():
    score = torch.tensor([[3.0, 1.0, 4.0, 2.0]], dtype=torch.float64)
    cost = torch.tensor([0.2, 0.1, 0.4, 0.1], dtype=torch.float64)
    masks = cheapest(score, cost, torch.tensor([0.05, 0.1, 0.15, 0.35, 0.8], dtype=torch.float64))[
        0
    ]
    # scores per cost 15, 10, 10, 20: of equals the lower index first
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [
        [1],
        [1],
        [1, 2],
        [1, 2],
        [0, 1, 2, 3],
    ]


def test_the_budget_is_met_by_a_mix_and_the_network_stays_as_it_was():
    model, _, judge = shown(KINDS)
    before = [value.clone() for value in model.state_dict().values()]
    method = SnapViT(crops=1, generations=1, levels=2, shown=20)
    found = prune(model, judge, ShownChooser(method, {"flops": 0.6}))
    left = count_flops(found.model, judge.selection.first()[:1]) / count_flops(
        model, judge.selection.first()[:1]
    )
    assert 0.58 < left <= 0.6 and found.chosen_by == ("train:train",)
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), before, strict=True))


@pytest.mark.parametrize(("kind", "times"), [(Cosine, 1), (Top1, 2), (None, 1)])
def test_the_whole_network_is_run_once_on_the_images_that_choose(kind, times, monkeypatch):
    """Twice where the score keeps other outputs than what it chooses by, and not for labels, which keep none."""
    model, _, judge = shown({"head"})
    judge.score, walks = kind, []
    whole = base.outputs_of_split
    monkeypatch.setattr(
        base, "outputs_of_split", lambda *args: walks.append(args[1]) or whole(*args)
    )
    prune(model, judge, ShownChooser(SnapViT(crops=1, generations=0, levels=1), {"flops": 0.8}))
    assert walks.count(judge.selection) == times


def test_no_set_of_as_many_heads_looks_more_like_the_whole_network():
    """Against all 84 sets of three heads, by the cosine of outputs; factors of 1 alone do not find the best of them."""
    model, layout, judge = shown({"head"})
    cost = float(spared(model, layout, judge.selection.first())[0])
    sets = list(itertools.combinations(range(layout.num_heads), 3))
    score = looked(Cosine, model, judge.selection, COUNT)
    evaluate = Evaluator(model, judge.selection, COUNT, score=score)
    losses = evaluate(torch.stack([layout.mask(list(heads)) for heads in sets])).loss

    def worse_than(**options):
        mask = SnapViT(**options).choose(model, judge, {"flops": 1 - 3 * cost})
        assert int(mask.sum()) == 3
        return float(
            (losses < losses[sets.index(tuple(mask.nonzero().flatten().tolist()))]).double().mean()
        )

    evolution, alone = [worse_than(seed=seed) for seed in range(3)], worse_than(generations=0)
    assert max(evolution) < 0.03 and min(evolution) == 0 and alone > 0.1


def test_what_it_cannot_do_is_refused_before_the_work(monkeypatch):
    with pytest.raises(UserError, match="levels: expected a whole number of at least 1, got 0"):
        SnapViT(levels=0)
    model, _, judge = shown({"head"})
    monkeypatch.setattr(SnapViT, "within_layers", None)  # the work
    with pytest.raises(UserError, match=r"^prune\.target"):
        SnapViT().choose(model, judge, {"flops": 0.01})
