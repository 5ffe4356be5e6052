"""The one way measures get to see images: notebook, probe, join, search and pruning all go through here."""

from __future__ import annotations

import functools
import itertools
import weakref
from pathlib import Path

import pytest
import timm
import torch
from torch.profiler import ProfilerActivity, profile

import mhprobe
import spawned
from mhprobe import ranks
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import Relevance
from mhprobe.measures.base import Measure
from mhprobe.recording import checks, measuring
from mhprobe.recording.measuring import measure_columns, score_heads
from models import images_for, labels_for, tiny_swin, tiny_vit


class Refuses(Measure):
    """Gives up on the second batch it is shown."""

    def __init__(self, layout, at="update", **kwargs):
        super().__init__(layout, **kwargs)
        self.at, self.shown = at, 0

    def update(self, batch):
        self.shown += 1
        if self.shown == 2:
            raise UserError("refuses: enough.")
        self.images += batch.valid.sum()

    def finish(self):
        return {"value": torch.zeros(self.layout.num_heads)}


def split(model, seed: int, count: int = 9) -> list[Batch]:
    images, labels = images_for(model, count, seed=seed), labels_for(count, seed=seed)
    index, valid = torch.arange(count), torch.ones(count, dtype=torch.bool)
    return [
        Batch(*(t[i : i + 4] for t in (images, labels, index, valid))) for i in range(0, count, 4)
    ]


@pytest.fixture
def model():
    model = tiny_vit()
    mhprobe.attach(model)
    return model


def test_what_chooses_is_shown_the_selection_images_first(model):
    layout = mhprobe.attach(model).layout
    test, val = split(model, 1), split(model, 7)
    pairs = {}
    for name, select in (("test", None), ("val", lambda: val)):
        chooses = mhprobe.measures.Interaction(layout, top_k=3)
        measure_columns(model, {"interaction": chooses}, lambda: test, select)
        pairs[name] = chooses.pairs
    importance, _ = measure_columns(
        model, {"i": mhprobe.measures.GateImportance(layout)}, lambda: val
    )
    assert sorted({head for pair in pairs["val"] for head in pair}) == sorted(
        importance["i"]["value"].topk(3).indices.tolist()
    )
    assert pairs["val"] != pairs["test"]  # the two splits do say different things


def test_one_that_cannot_be_recorded_does_not_hold_up_the_others_in_any_piece(monkeypatch):
    """Of the second piece of a batch the refused need was asked for again, and all measures were lost."""
    monkeypatch.setattr(measuring, "MOST_BY_ROWS", 1)  # pieces of one image
    model = tiny_vit()
    layout, batch = mhprobe.attach(model).layout, one_batch(model, 5)

    class Unknown(mhprobe.measures.Entropy):
        needs = frozenset({"attn", "tea"})

    measures = {"no": Unknown(layout), "yes": mhprobe.measures.Entropy(layout)}
    found, refused = measure_columns(model, measures, lambda: [batch])
    assert set(refused) == {"no"} and int(found["yes"]["images"]) == 5


def test_one_that_refuses_does_not_hold_up_the_others_and_is_fed_no_further(model):
    layout = mhprobe.attach(model).layout
    refusing = Refuses(layout)
    measures = {"no": refusing, "yes": mhprobe.measures.GateImportance(layout)}
    found, refused = measure_columns(model, measures, lambda: split(model, 1))
    assert set(found) == {"yes"} and int(found["yes"]["images"]) == 9
    assert str(refused["no"]) == "refuses: enough." and refusing.shown == 2


def test_a_batch_is_summed_whole_whatever_else_is_measured_and_however_its_padding_falls(model):
    """Attention weights cut a batch into pieces, each of which was once summed as a batch."""
    layout, (images, labels) = mhprobe.attach(model).layout, (images_for(model, 24), labels_for(24))
    valid = torch.ones(24, dtype=torch.bool)
    valid[6:12], valid[23] = False, False  # the last piece of the first batch is padding
    batches = [
        Batch(images[of], labels[of], torch.arange(24)[of], valid[of])
        for of in (slice(12), slice(12, 24))
    ]
    assert [part.stop for part in measuring.slices_of_batch(12, layout, {"grad", "attn"})] == [
        6,
        12,
    ]
    of_batches = functools.partial(mhprobe.measures.GateImportance, layout, abs_at="batch")
    for make in (of_batches, functools.partial(of_batches, power=2)):
        alone = make()
        for batch in batches:
            alone.update(mhprobe.record(model, batch.images, batch.labels, {"grad"}, batch.valid))
        for also in ({}, {"entropy": mhprobe.measures.Entropy(layout)}):
            got, _ = measure_columns(model, {"batch": make(), **also}, lambda: batches)
            for name, column in alone.columns().items():
                torch.testing.assert_close(
                    got["batch"][name], column, rtol=1e-4, atol=1e-9
                )  # float32 in other pieces


def test_what_a_measure_saw_before_is_forgotten(model):
    layout = mhprobe.attach(model).layout
    again = mhprobe.measures.GateImportance(layout)
    (first, _), (second, _) = (
        measure_columns(model, {"i": again}, lambda: split(model, 1)) for _ in range(2)
    )
    assert torch.equal(first["i"]["value"], second["i"]["value"])
    assert int(second["i"]["images"]) == 9


def test_classes_have_their_names_and_every_batch_is_counted(model):
    layout = mhprobe.attach(model).layout
    ablation, seen = mhprobe.measures.AblationDelta(layout), []
    names = ["cat", "dog", "elk", "fox", "gnu"]
    measure_columns(
        model,
        {"a": ablation},
        lambda: split(model, 1),
        class_names=names,
        done=lambda b: seen.append(len(b.images)),
    )
    assert ablation.axes["by_class"] == names
    assert seen == [4, 4, 1]


def test_scores_are_one_number_per_head(model):
    layout = mhprobe.attach(model).layout
    scores = score_heads(
        model, mhprobe.measures.GateImportance(layout), lambda: split(model, 1), "signed"
    )
    assert scores.shape == (layout.num_heads,)
    with pytest.raises(
        UserError, match=r"gate_importance: expected one of its columns per head, value, .*'images'"
    ):
        score_heads(
            model, mhprobe.measures.GateImportance(layout), lambda: split(model, 1), "images"
        )


def one_rank(rank: int, world: int, folder: Path) -> None:
    model = tiny_vit().double()
    layout = mhprobe.attach(model).layout
    batches = [b._replace(images=b.images.double()) for b in split(model, 1)][rank : rank + 1]
    told = {
        "gather": ranks.gather(rank),
        "zero": ranks.from_rank_zero(lambda: rank + 10),
        "sum": ranks.total(torch.tensor(rank)),
        "at": (ranks.rank(), ranks.size()),
    }
    # the third rank has nothing to show, and only the first is given a batch twice, at which
    # Refuses gives up
    mine = {0: batches * 2, 1: batches * 1, 2: []}[rank]
    measures = {"no": Refuses(layout), "yes": mhprobe.measures.GateImportance(layout)}
    found, refused = measure_columns(model, measures, lambda: mine)
    told["found"], told["refused"] = found["yes"]["value"], str(refused["no"])
    broken = [b._replace(images=b.images * torch.nan) for b in mine] if rank == 1 else mine
    try:
        measure_columns(model, {"yes": measures["yes"]}, lambda: broken)
    except UserError as error:
        told["raised"] = str(error)
    torch.save(told, folder / f"{rank}.pt")


@pytest.mark.slow
def test_ranks_stay_in_step_whatever_one_of_them_meets(tmp_path):
    spawned.ranks(one_rank, 3, tmp_path)
    model = tiny_vit().double()
    whole = [b._replace(images=b.images.double()) for b in split(model, 1)]
    importance = {"yes": mhprobe.measures.GateImportance(mhprobe.attach(model).layout)}
    one_by_one = [
        Batch(*(part[i : i + 1] for part in b[:4]))
        for b in (whole[0], *whole[:2])
        for i in range(4)
    ]
    alone, _ = measure_columns(model, importance, lambda: one_by_one)
    told = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(3)]
    for rank, mine in enumerate(told):
        assert mine["gather"] == [0, 1, 2] and mine["zero"] == 10 and int(mine["sum"]) == 3
        assert mine["at"] == (rank, 3)
        assert mine["refused"] == "refuses: enough."
        assert torch.equal(mine["found"], told[0]["found"])
        # float64: forward passes of other batch sizes alone differ by 1e-6 in float32, whatever the
        # ranks
        torch.testing.assert_close(mine["found"], alone["yes"]["value"], rtol=1e-9, atol=0)
        assert "NaN or infinite" in mine["raised"]


def test_alone_nothing_is_sent():
    part = torch.ones(2)
    assert ranks.total(part) is part and torch.equal(part, torch.ones(2))
    assert (
        ranks.rank(),
        ranks.size(),
        ranks.gather("a"),
        ranks.from_rank_zero(functools.partial(int, 3)),
    ) == (
        0,
        1,
        ["a"],
        3,
    )


class Watches(Measure):
    """Keeps how much it was shown at a time, and whether it all was given back before the next."""

    def __init__(self, layout, needs):
        super().__init__(layout)
        self.needs, self.sizes, self.weights = frozenset(needs), [], []
        self.before: weakref.ref | None = None

    def update(self, batch):
        assert self.before is None or self.before() is None  # or two passes take room at once
        self.before = weakref.ref(batch.z[0])
        self.sizes.append(len(batch.valid))
        self.weights.append([attn.numel() for attn in batch.attn or ()])
        self.images += batch.valid.sum()

    def finish(self):
        return {"value": torch.zeros(self.layout.num_heads)}


def one_batch(model, count: int) -> Batch:
    parts = (
        images_for(model, count),
        labels_for(count),
        torch.arange(count),
        torch.ones(count, dtype=torch.bool),
    )
    return Batch(*parts)


@pytest.mark.parametrize("make", [functools.partial(tiny_vit, depth=4), tiny_swin])
@pytest.mark.parametrize("needs", [{"attn"}, {"grad", "attn_grad"}])
def test_attention_of_all_blocks_takes_the_room_of_one_block_for_the_whole_batch(make, needs):
    model = make()
    layout, batch = mhprobe.attach(model).layout, one_batch(model, 70)
    seen, other = Watches(layout, needs), Watches(layout, {"grad"})
    measure_columns(model, {"seen": seen}, lambda: [batch])
    assert sum(seen.sizes) == 70 and len(seen.sizes) > 1
    room = 70 * max(site.attention_size for site in layout.sites)
    if seen.weights[0]:
        assert seen.weights[0] == [seen.sizes[0] * site.attention_size for site in layout.sites]
        assert all(sum(weights) <= room for weights in seen.weights)
        assert (
            sum(seen.weights[0]) * 70 // seen.sizes[0] > room
        )  # the whole batch at once would not do
    measure_columns(model, {"other": other}, lambda: [batch])
    assert other.sizes == [70]  # who asks for no attention gets it whole


@pytest.mark.parametrize("build", [tiny_swin, tiny_vit])  # matrices, and rows
def test_pieces_add_up_to_what_the_whole_batch_gives(monkeypatch, build):
    model = build().double()
    layout, batch = mhprobe.attach(model).layout, one_batch(model, 37)
    batch = batch._replace(images=batch.images.double(), valid=torch.arange(37) != 20)
    makers = [mhprobe.measures.Entropy, mhprobe.measures.NoOp, mhprobe.measures.GateImportance]
    found, pieces = [], []
    record = measuring.record
    monkeypatch.setattr(
        measuring, "record", lambda *args, **options: pieces.append(1) or record(*args, **options)
    )
    for least, most in ((4, 1), (1000, 2**30)):
        monkeypatch.setattr(measuring, "LEAST", least)
        monkeypatch.setattr(measuring, "MOST_BY_ROWS", most)
        measures = {make.__name__: make(layout) for make in makers}
        found.append(measure_columns(model, measures, lambda: [batch])[0])
        assert (len(pieces) == 1) == (least == 1000)
        pieces.clear()
    for name in found[1]:
        for column, values in found[1][name].items():
            torch.testing.assert_close(
                found[0][name][column], values, rtol=1e-9, atol=1e-12, equal_nan=True
            )


def test_rows_of_large_images_are_recorded_few_at_a_time_and_of_small_ones_all_together():
    """Pieces of eight small images once took three times as long; pieces of eight large ones twice the memory."""
    with torch.device("meta"):
        large = timm.create_model("vit_small_patch14_dinov2", img_size=224, num_classes=0)
    needs = {"rows", "row_slopes", "stream"}

    def longest(model, device):
        layout = layout_of(model)
        seen = measuring.slices_of_batch(64, layout, needs, torch.device(device))
        return max(part.stop - part.start for part in seen)

    assert longest(large, "cpu") == 2
    assert 2 < longest(large, "cuda") < 64, "a GPU would be idle between launches of so few"
    assert longest(tiny_vit(), "cpu") == 64


@pytest.mark.parametrize(
    "needs", [{"attn"}, {"grad"}, {"grad", "attn_grad", "stream"}, {Relevance()}]
)
def test_records_of_large_images_are_of_few_of_them_and_of_equally_many(needs):
    with torch.device("meta"):  # 1,370 tokens: 541 MB of attention weights an image
        large = timm.create_model("vit_small_patch14_dinov2", img_size=518, num_classes=0)
    tokens, heads, blocks = 1370, 6, 12
    weights, row = 4 * blocks * heads * tokens**2, 4 * blocks * tokens * 384
    seen = measuring.slices_of_batch(32, layout_of(large), needs)
    assert [image for these in seen for image in range(32)[these]] == list(range(32))
    longest = max(len(range(32)[these]) for these in seen)
    if needs == {"grad"}:
        assert longest == 3 and longest * 12 * row < 2**30
    else:
        assert longest == 1, f"one takes {weights / 2**30:.2f} GiB and more"
    small = mhprobe.attach(tiny_vit()).layout
    assert measuring.slices_of_batch(8, small, needs) == [slice(0, 8)]
    assert measuring.slices_of_batch(0, small, needs) == [slice(0, 0)]


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
def test_a_record_that_does_not_fit_is_refused_before_the_work_with_sizes_that_do(
    monkeypatch, build
):
    model = build()
    layout, images, ran = mhprobe.attach(model).layout, images_for(model, 4), []
    model.register_forward_pre_hook(lambda *_: ran.append(True))
    one = 4 * checks.numbers_of(layout, {"attn"})
    monkeypatch.setattr(checks, "free_memory", lambda: 2.5 * one)
    with pytest.raises(
        UserError, match=r"for 4 images of .* got \d\.\d\d\. Record at most 2 at a time, or build"
    ):
        mhprobe.record(model, images, needs={"attn"})
    assert not ran
    assert mhprobe.record(model, images[:2], needs={"attn"}).attn is not None
    monkeypatch.setattr(checks, "free_memory", lambda: 0.9 * one)
    with pytest.raises(
        UserError, match=r"for 1 image of .* got \d\.\d\d\. Build the network"
    ) as error:
        mhprobe.record(model, images[:1], needs={"attn"})
    if build is tiny_swin:
        return  # its windows are padded, so smaller images take somewhat more than their share
    size = int(str(error.value).partition("img_size=")[2].split()[0])
    fits, more = (
        4 * checks.numbers_of(layout_of(build(img_size=side)), {"attn"})
        for side in (size, 2 * size)
    )
    assert size < images.shape[-1] and fits <= 0.45 * one < more


@pytest.mark.parametrize("need", [Relevance(), "attn_grad"])
@pytest.mark.parametrize("patch", [16, 4])  # few tokens and wide ones, or mostly attention weights
def test_a_record_is_counted_with_all_that_stands_beside_it(patch, need):
    """Against torch's count of what it held; once a third of it was left out, and the system ended the run."""
    size = {
        "img_size": 112,
        "patch_size": patch,
        "embed_dim": 96,
        "depth": 3,
        "num_heads": 2,
        "num_classes": 10,
    }
    model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    layout, count = mhprobe.attach(model).layout, patch // 4
    images, labels = torch.randn(count, 3, 112, 112), torch.zeros(count, dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        mhprobe.record(model, images, labels, needs={need})
    steps = [
        event.nbytes()
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    peak, counted = max(itertools.accumulate(steps)), 4 * count * checks.numbers_of(layout, {need})
    assert peak <= counted <= 1.5 * peak, f"{counted / peak:.2f}"


def test_a_measure_whose_record_does_not_fit_does_not_hold_up_the_others(monkeypatch):
    model = tiny_vit()
    layout = mhprobe.attach(model).layout
    monkeypatch.setattr(
        checks, "free_memory", lambda: 3 * 4 * (checks.numbers_of(layout, {"attn"}) - 1)
    )
    measures = {
        "matrices": Watches(layout, {"attn"}),
        "WriteNorm": mhprobe.measures.WriteNorm(layout),
    }
    columns, refused = measure_columns(model, measures, lambda: [one_batch(model, 3)])
    assert set(columns) == {"WriteNorm"} and "GiB of free memory" in str(refused["matrices"])
