"""Pruning as a function of a model and images: no configuration, no files, no trainer."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import mhprobe
import runs
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.framework.run.pruning import Pruning, of_pruned, stages_in_words
from mhprobe.heads import KINDS
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.fisher import Fisher
from mhprobe.masking.parts.curve import CurveSpec, curve_on_splits
from mhprobe.masking.random import Random
from mhprobe.pruning import by_chance, rounds
from mhprobe.pruning.given import Given
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import Judge, Removal, Selection, prune
from mhprobe.recording.replay import Replay
from mhprobe.report import tables
from mhprobe.scoring.cosine import Cosine
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from mhprobe.surgery.repair import repair
from models import TWINS, images_for, labels_for
from pruned import description, logits, network

SIZES = {"train": 30, "val": 14, "test": 23}


class Data:
    """What pruning asks of ImageData, on random images; notes which splits were looked at."""

    sizes, unlabelled = SIZES, False

    def __init__(self, model):
        self.images = {s: images_for(model, n, seed=n) for s, n in SIZES.items()}
        self.labels = {s: labels_for(n, seed=n) for s, n in SIZES.items()}
        self.splits = {
            s: SimpleNamespace(labels=np.asarray(labels)) for s, labels in self.labels.items()
        }
        self.seen = []

    def images_of(self, split):
        return f"{split} {getattr(self, 'places', '')}".strip()

    def only(self, split, places):
        if len(places) == self.sizes[split]:
            return self
        part = copy.copy(self)
        part.places = torch.as_tensor(places)
        part.images = {**self.images, split: self.images[split][part.places]}
        part.labels = {**self.labels, split: self.labels[split][part.places]}
        return part

    def batches(self, split, device, images=None):
        self.seen.append(split)
        every = torch.arange(len(self.images[split]))
        for index in (every if images is None else images).split(8):
            valid = torch.ones(len(index), dtype=torch.bool)
            yield Batch(self.images[split][index], self.labels[split][index], index, valid)


@pytest.fixture
def model():
    model = network("vit")
    mhprobe.attach(model)
    return model


def judge_of(model, **options):
    return Judge(Selection(Data(model), torch.device("cpu"), **options))


class Aside(Data):
    """Of the test images so many are set aside."""

    def __init__(self, model, count):
        super().__init__(model)
        self.count, self.sizes, self.set_aside = (
            count,
            {**SIZES, "calibration": count},
            f"first {count}",
        )

    def batches(self, split, device, images=None):
        if split != "calibration":
            return super().batches(split, device, images)
        return super().batches("test", device, torch.arange(self.count))


def test_kept_answers_on_images_set_aside_are_of_these_images_this_fill_and_this_score(
    model, tmp_path
):
    mask = torch.arange(layout_of(model).num_heads)[None] % 2 == 0

    def losses(count, look_at, fold, score, cache):
        selection = Selection(Aside(model, count), torch.device("cpu"), look_at=look_at)
        judge = Judge(selection, score, cache=cache)
        judge.show(model)
        return judge.calibrate(model, False, judge.selection.stands_in(model, fold))(mask).losses

    first = (16, 24, "mean", None)
    others = [
        (16, 8, "mean", None),
        (16, 8, "zero", None),
        (10, 8, "zero", None),
        (10, 8, "zero", Cosine),
    ]
    for asked in (first, *others, first):
        torch.testing.assert_close(losses(*asked, tmp_path), losses(*asked, None), rtol=0, atol=0)
    assert len(list(tmp_path.iterdir())) == 5  # the last was known


def names(found):
    return [(row.round, row.stage, row.heads) for row in found.stages]


def test_rounds_choose_anew_on_what_is_left_and_repair_towards_it(model, monkeypatch):
    trained, repaired = [], []

    def mended(pruned, dense, *rest, **options):
        repaired.append((layout_of(pruned).num_heads, layout_of(dense).num_heads))
        repair(pruned, dense, *rest, **options)

    monkeypatch.setattr(rounds, "repair", mended)

    def train(smaller, kept, number):
        trained.append((number, sum(len(heads) for heads in kept.values())))
        return smaller

    source = OnPath(ByScore(measure=mhprobe.measures.GateImportance), remove=3)
    found = prune(
        model, judge_of(model), source, Removal(mend={"per": "weights"}, train=train), rounds=2
    )
    assert names(found) == [
        (0, "dense", 6),
        *[(1, stage, 4) for stage in ("masked", "pruned", "repaired", "tuned")],
        *[(2, stage, 3) for stage in ("masked", "pruned", "repaired", "tuned")],
    ]
    assert trained == [(1, 4), (2, 3)] and int(found.gone.sum()) == 3
    assert repaired == [
        (4, 6),
        (3, 4),
    ]  # the second round towards what the first has left and trained
    masked, pruned = found.stages[1:3]
    assert (masked.accuracy, masked.loss) == (pruned.accuracy, pytest.approx(pruned.loss))
    assert masked.flops > pruned.flops and masked.parameters > pruned.parameters
    assert all(row.low <= row.accuracy <= row.high and row.images == 23 for row in found.stages)
    assert layout_of(found.model).num_heads == 3 and layout_of(model).num_heads == 6
    assert stages_in_words(found)[0].startswith("round 0    dense: 6 heads, accuracy ")
    assert stages_in_words(found)[8].startswith("round 2    tuned: 3 heads, accuracy ")


def test_every_stage_is_compared_with_the_dense_network_image_by_image(model):
    found = prune(model, judge_of(model), Given([0, 1, 3, 4]))
    data = Data(model)
    dense, *_, pruned = (
        logits(network, data.images["test"]).argmax(1) == data.labels["test"]
        for network in (model, found.model)
    )
    lost, won = int((dense & ~pruned).sum()), int((~dense & pruned).sum())
    assert (
        lost + won > 0
        and torch.equal(found.right[0], dense)
        and torch.equal(found.right[-1], pruned)
    )
    first, last = found.stages[0], found.stages[-1]
    assert last.p == pytest.approx(binomtest(lost, lost + won).pvalue)
    assert (
        last.difference
        == pytest.approx((won - lost) / 23)
        == pytest.approx(last.accuracy - first.accuracy)
    )
    assert last.difference_low < last.difference < last.difference_high
    assert (first.difference, first.p) == (
        0,
        1,
    ) and first.difference_low < 0 < first.difference_high


def test_one_test_image_is_enough(model, monkeypatch):
    monkeypatch.setitem(SIZES, "test", 1)
    found = prune(model, judge_of(model), Given([0]))
    assert [len(right) for right in found.right] == [1, 1, 1] and found.stages[-1].p == 1


@pytest.mark.parametrize(("select_on", "split"), [("train", "train"), ("validation", "val")])
def test_heads_are_chosen_on_one_split_and_reported_on_another(model, select_on, split):
    judge = judge_of(model, select_on=select_on, look_at=10)
    assert len(judge.selection.chosen) == 10
    source = OnPath(Fisher(), remove=2)
    looks = judge.selection.data.seen
    evaluate = judge.evaluate(model, False)
    assert evaluate.images == 10 and not looks
    source.choose(model, evaluate, lambda: images_for(model, 1), layout_of(model), 1.0, 1.0)
    assert set(looks) == {split}
    prune(model, judge, Given([0]))
    assert set(looks) == {split, "test"}


def test_what_is_left_of_a_rescaled_curve_is_rescaled(model, tmp_path):
    """The masked, rescaled model of the curve, and not the one without the factors."""
    judge = judge_of(model)
    evaluate = Evaluator(
        model, lambda: judge.selection.data.batches("val", "cpu"), 14, masked=MaskedAs(rescale=True)
    )
    spec = CurveSpec("c", "head", Fisher(), min_heads_per_layer=1, rescale=True)
    curves = curve_on_splits(
        layout_of(model), spec, evaluate, evaluate, steps=3
    )  # one layer loses two heads
    table = tables.write_csv(
        tmp_path / "masking_curves.csv", tables.from_rows(tables.curve_rows(curves))
    )
    found = prune(model, judge, Given(str(table), remove=3))
    batch = next(judge.selection.test())
    expected = Replay(model, found.gone[None], rescale=True)(batch.images)[0]
    torch.testing.assert_close(logits(found.model, batch.images), expected, rtol=1e-5, atol=1e-5)
    plain = logits(mhprobe.prune_heads(model, found.gone), batch.images)
    assert found.rescaled and not torch.allclose(plain, expected, atol=1e-4)
    same = prune(model, judge, OnPath(Fisher(), remove=3, rescale=True))
    assert same.rescaled and same.difference < 1e-5


def test_a_bias_that_was_dropped_stays_dropped(model):
    with torch.no_grad():
        model.blocks[0].attn.proj.bias.fill_(1.0)
        model.blocks[1].attn.proj.bias.fill_(1.0)

    def train(smaller, kept, number):
        free = [parameter for parameter in smaller.parameters() if parameter.requires_grad]
        smaller(images_for(model, 4)).square().sum().backward()
        torch.optim.SGD(free, 0.1).step()
        return smaller

    for choice in ("keep", "drop"):
        found = prune(
            model,
            judge_of(model),
            Given([0, 1, 2]),
            Removal(proj_bias=choice, mend={"per": "weights"}, train=train),
        )
        assert bool(found.model.blocks[0].attn.proj.bias.any()) == (choice == "keep")
        assert not torch.equal(found.model.blocks[1].attn.proj.bias, model.blocks[1].attn.proj.bias)


def test_given_heads_have_no_rounds(model):
    with pytest.raises(mhprobe.UserError, match=r"^rounds.*prune=order"):
        prune(model, judge_of(model), Given([0]), rounds=2)


def test_a_block_whose_neurons_all_go_becomes_its_bias_and_is_named(tmp_path, capsys):
    model = network("vit")
    layout = mhprobe.attach(model, units={"head", "neuron"}).layout
    emptied = layout.span(layout.sites.index(layout.of("neuron").sites[0]))
    heads = f"prune.heads={[*range(emptied.start, emptied.stop)]}"
    pruning = Pruning(
        runs.config("prune", tmp_path, "weights=random", "prune=given", heads), tmp_path
    )
    data = Data(model)
    data.fingerprint = "random images"
    whole = SimpleNamespace(
        backbone=model, description=description("vit"), device=torch.device("cpu")
    )
    material = SimpleNamespace(model=whole, data=data, layout=layout, identity={})
    found, _ = pruning._pruned(material, None, Given([*range(emptied.start, emptied.stop)]))
    assert "blocks.0.mlp: no neuron is left, so a bias alone\n" in capsys.readouterr().out
    assert found.model.blocks[0].mlp.fc2.in_features == 0 and found.difference < 1e-5


def test_a_network_without_heads_loses_neurons_and_is_not_asked_for_heads():
    model = network("vit")
    heads = mhprobe.attach(model, units=KINDS).layout.of("head").num_heads
    rest = mhprobe.prune_heads(model, [*range(heads)])
    with pytest.raises(
        mhprobe.UserError, match="of 0 layers 0 are excluded, so nothing is left to mask"
    ):
        OnPath(Random(), remove=1).check(rest, 1)
    layout = mhprobe.attach(rest, units=KINDS).layout
    kept = of_pruned(prune(rest, judge_of(rest), Given([0, 1])), layout)["kept_heads"]
    assert kept.figure is None
    assert (
        sum(row[kept.table.columns.index("kept")] for row in kept.table.rows)
        == layout.num_heads - 2
    )


def test_heads_that_have_no_gates_are_not_counted_as_gone():
    model = network("vit")
    layout = mhprobe.attach(model, units={"neuron"}).layout
    found = prune(model, judge_of(model), Given([*range(1, layout.num_heads)]))
    assert [row.heads for row in found.stages] == [None] * len(found.stages)
    assert (found.stages[0].counted, found.stages[-1].counted) == (
        f"{layout.num_heads} neurons",
        "1 neuron",
    )
    stages = of_pruned(found, layout)["pruning"]
    assert "heads" not in stages.table.columns and stages.table.columns[-1] == "neurons"
    assert "prune/heads" not in stages.metrics and stages.metrics["prune/neurons"] == 1
    assert len(layout_of(found.model, {"head"}).sites) == 2


def test_a_network_that_cannot_lose_heads_is_refused_before_it_is_scored():
    with pytest.raises(mhprobe.UserError, match="its own forward fails without a head"):
        prune(TWINS["torchvision_vit"](), None, Given([0]))  # no image is asked for


def test_each_draw_has_as_many_units_of_every_kind():
    layout = mhprobe.attach(network("vit"), units={"head", "neuron"}).layout
    heads = layout.of("head").num_heads
    gone = torch.zeros(layout.num_heads, dtype=torch.bool)
    gone[[0, 4]], gone[heads : heads + 5] = True, True
    masks = by_chance.random_masks(gone, layout, 4, seed=1)
    assert masks[:, :heads].sum(1).tolist() == [2] * 4
    assert masks[:, heads:].sum(1).tolist() == [5] * 4
    assert len({tuple(mask.tolist()) for mask in masks}) > 1
    assert masks.equal(by_chance.random_masks(gone, layout, 4, seed=1))
    assert not masks.equal(by_chance.random_masks(gone, layout, 4, seed=2))


@pytest.mark.parametrize("most", [1000, 11], ids=["all test images", "some"])
def test_as_many_random_heads_are_masked_in_the_whole_network_on_the_same_images(
    model, monkeypatch, most
):
    monkeypatch.setattr(by_chance, "AT_MOST", most)
    judge = judge_of(model)
    images = judge.selection
    source = OnPath(ByScore(measure=mhprobe.measures.GateImportance), remove=3)
    found = prune(model, judge, source, Removal(draws=4), rounds=2)
    where = images.some("test", most)
    shown, labels = (of["test"][where] for of in (images.data.images, images.data.labels))
    masks = by_chance.random_masks(found.gone, layout_of(model), 4, images.seed)
    assert masks.sum(1).tolist() == [3] * 4

    def right(mask):
        with mhprobe.gates.gates_of(model).masked(mask):
            return (logits(model, shown).argmax(1) == labels).double().mean()

    whole = right(torch.zeros(6, dtype=torch.bool))
    random = found.by_chance
    assert random.difference == pytest.approx(
        float(torch.stack([right(mask) - whole for mask in masks]).mean())
    )
    assert random.chosen == pytest.approx(float(right(found.gone) - whole))
    assert (random.draws, random.images) == (4, min(most, SIZES["test"]))
    metrics = of_pruned(found, layout_of(model))["pruning"].metrics
    assert metrics["prune/random/difference"] == random.difference


def test_nobody_draws_unasked(model):
    found = prune(model, judge_of(model), Given([0]))
    assert found.by_chance is None
    metrics = of_pruned(found, layout_of(model))["pruning"].metrics
    assert not any("random" in name for name in metrics)
