"""Scores of masks on a split: per image, each image once, whatever was cached, picked or shared."""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest
import torch
from torch import Tensor, nn

import mhprobe
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.measures import GateImportance, OneHead
from mhprobe.scoring.base import known_scores
from mhprobe.scoring.parts import evaluate
from mhprobe.scoring.parts.evaluate import Evaluator
from models import images_for, labels_for, make_loud, tiny_vit

N = 23


@pytest.fixture(scope="module")
def model() -> nn.Module:
    model = tiny_vit()
    make_loud(model, 0.2)
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    return model


@pytest.fixture(scope="module")
def images(model) -> Tensor:
    return images_for(model, N)


LABELS = labels_for(N)
MASKS = torch.cat([torch.zeros(1, 6, dtype=torch.bool), torch.eye(6, dtype=torch.bool)])


def walk(images: Tensor, chosen: Tensor | None = None, size: int = 5):
    """Batches of the chosen images, each with one that does not count."""
    chosen = torch.arange(N) if chosen is None else chosen
    for index in chosen.split(size):
        index = torch.cat([index, index[:1]])
        yield Batch(images[index], LABELS[index], index, torch.arange(len(index)) < len(index) - 1)


def make(model: nn.Module, images: Tensor, **options):
    return Evaluator(model, lambda: walk(images), N, **options)


def expected(model: nn.Module, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Image by image, mask by mask."""
    gates, right, losses = mhprobe.attach(model), [], []
    with torch.no_grad():
        for mask in masks:
            before = gates.values.clone()
            gates.values[mask] = 0
            logits = [model(image[None])[0].double() for image in images]
            gates.values.copy_(before)
            right.append(
                [int(row.argmax()) == int(label) for row, label in zip(logits, LABELS, strict=True)]
            )
            losses.append(
                [
                    float(-row.log_softmax(0)[label])
                    for row, label in zip(logits, LABELS, strict=True)
                ]
            )
    return torch.tensor(right), torch.tensor(losses, dtype=torch.float64)


def test_every_image_is_scored_under_every_mask(model, images):
    evaluate = make(model, images)
    scores = evaluate(MASKS)
    right, losses = expected(model, images, MASKS)
    assert torch.equal(scores.right, right) and 0 < int(right.sum()) < right.numel()
    torch.testing.assert_close(
        scores.losses, losses, rtol=1e-4, atol=1e-5
    )  # float32 against a float64 softmax
    assert torch.equal(scores.correct, right.sum(1)) and scores.images == N
    assert evaluate.spent == 7 * N


@pytest.mark.parametrize("picks", [False, True])
def test_some_images_in_the_order_they_are_asked_for(model, images, picks):
    pick = (lambda chosen: walk(images, chosen)) if picks else None
    evaluate = make(model, images, pick=pick)
    chosen = torch.tensor([7, 2, 22, 3])
    right, losses = expected(model, images, MASKS)
    scores = evaluate(MASKS, chosen)
    assert torch.equal(scores.right, right[:, chosen]) and evaluate.spent == 7 * 4
    torch.testing.assert_close(scores.losses, losses[:, chosen], rtol=1e-4, atol=1e-5)


def test_an_image_that_is_missed_gives_no_number(model, images):
    evaluate = Evaluator(model, lambda: list(walk(images))[:-1], N)
    with pytest.raises(RuntimeError, match="saw 20 of 23 images"):
        evaluate(MASKS)
    evaluate = Evaluator(model, lambda: [*walk(images), *walk(images, torch.tensor([3]))], N)
    with pytest.raises(RuntimeError, match="1 of them more than once"):
        evaluate(MASKS)


def test_slopes_are_those_of_the_share_of_a_head(model, images):
    wide, off, step = copy.deepcopy(model).double(), MASKS[2], 1e-4
    gates, images = mhprobe.attach(wide), images.double()
    mean, square = make(wide, images).slopes(off)
    per_image = torch.zeros(N, 6, dtype=torch.float64)
    with torch.no_grad():
        for head in torch.nonzero(~off).flatten().tolist():
            losses, shares = [], []
            for share in (1 + step, 1 - step):
                before = gates.values.clone()
                gates.values[off] = 0
                gates.values[head] *= share
                shares.append(
                    gates.values[head].double() / before[head].double()
                )  # gates are float32, which rounds
                losses.append(nn.functional.cross_entropy(wide(images), LABELS, reduction="none"))
                gates.values.copy_(before)
            per_image[:, head] = (losses[0] - losses[1]) / (shares[0] - shares[1])
    # what a difference quotient leaves out is of the order of step squared
    torch.testing.assert_close(mean, per_image.mean(0), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(square, per_image.square().mean(0), rtol=1e-5, atol=1e-8)
    assert mean[off].abs().sum() == 0 and mean.abs().max() > 1e-3


def test_a_measure_is_shown_the_masked_model(model, images):
    evaluate = make(model, images)
    importance = evaluate.measure(GateImportance, MASKS[0])
    gates = mhprobe.attach(model)
    measured = GateImportance(gates.layout)
    for batch in walk(images):
        measured.update(mhprobe.record(model, batch.images, batch.labels, {"grad"}, batch.valid))
    torch.testing.assert_close(
        importance, measured.compute() * gates.values.detach()
    )  # as a removal sees it
    assert not torch.allclose(evaluate.measure(GateImportance, MASKS[1]), importance)
    torch.testing.assert_close(
        evaluate.measure(GateImportance, MASKS[0], "signed"),
        measured.columns()["signed"] * gates.values.detach(),
    )
    with pytest.raises(UserError, match="signed"):
        evaluate.measure(GateImportance, MASKS[0], "colour")


# --- the cache


def test_what_was_scored_once_is_not_scored_again(model, images, tmp_path):
    first, again = (make(model, images, cache=MaskCache(tmp_path, "key")) for _ in range(2))
    some = torch.tensor([5, 1, 9])
    scores, part = first(MASKS[:4]), first(MASKS[5:], some)
    assert torch.equal(again(MASKS[:4]).losses, scores.losses) and torch.equal(
        again(MASKS[:4]).right, scores.right
    )
    assert torch.equal(again(MASKS[5:], some).losses, part.losses)
    assert torch.equal(
        again(MASKS[:4], some).losses, scores.losses[:, some]
    )  # all images hold some
    assert again.computed == 0
    assert again.spent == 2 * 4 * N + 2 * 3 + 4 * 3  # what was asked for, known or not
    mixed = again(MASKS)
    assert again.computed == 3 * N  # the other masks, on all images
    torch.testing.assert_close(mixed.losses[:4], scores.losses, rtol=0, atol=0)
    assert (
        make(model, images, cache=MaskCache(tmp_path, "other"))(MASKS[:4])
        and again.computed == 3 * N
    )


def test_jobs_see_what_others_append(tmp_path, model, images):
    a, b = (make(model, images, cache=MaskCache(tmp_path, "key")) for _ in range(2))
    a(MASKS[:2])
    b(MASKS[:2])
    b(MASKS[2:4])
    a(MASKS[:4])
    assert (a.computed, b.computed) == (2 * N, 2 * N)


@pytest.mark.parametrize("damage", ["cut", "flip", "noise", "empty"])
def test_damaged_records_are_scored_again_and_the_others_are_not(
    tmp_path, model, images, caplog, damage
):
    whole = make(model, images, cache=MaskCache(tmp_path, "key"))(MASKS)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    record = len(data) // 7
    if damage == "cut":
        data = data[: 6 * record + 20]
    elif damage == "flip":
        data[2 * record + 60] ^= 1
    elif damage == "noise":
        data[2 * record : 3 * record] = bytes(range(256)) * 10
    else:
        data = bytearray()
    file.write_bytes(data)
    evaluate = make(model, images, cache=MaskCache(tmp_path, "key"))
    scores = evaluate(MASKS)
    torch.testing.assert_close(scores.losses, whole.losses, rtol=1e-5, atol=1e-6)
    assert evaluate.computed == {"empty": 7 * N}.get(damage, N)
    assert ("damaged in part" in caplog.text) == (damage in ("flip", "noise"))
    # what was scored again is found the next time, behind the damage
    after = make(model, images, cache=MaskCache(tmp_path, "key"))
    after(MASKS)
    assert after.computed == 0


def test_float64_losses_keep_their_digits(tmp_path, model, images):
    wide = tiny_vit().double()
    mhprobe.attach(wide)
    batches = [batch._replace(images=batch.images.double()) for batch in walk(images)]
    scores = [
        Evaluator(wide, lambda: batches, N, cache=MaskCache(tmp_path, "key"))(MASKS)
        for _ in range(2)
    ]
    assert torch.equal(scores[0].losses, scores[1].losses)
    assert not torch.equal(scores[0].losses, scores[0].losses.float().double())


def test_a_disk_that_takes_nothing_costs_a_warning(tmp_path, model, images, caplog):
    (tmp_path / "file").write_text("")
    scores = make(model, images, cache=MaskCache(tmp_path / "file" / "cache", "key"))(MASKS)
    assert torch.equal(scores.right, make(model, images)(MASKS).right)
    assert "is not kept" in caplog.text


def test_slopes_and_measured_columns_are_kept_too(tmp_path, model, images):
    first, again = (make(model, images, cache=MaskCache(tmp_path, "key")) for _ in range(2))
    looks = [
        lambda evaluate: evaluate.slopes(MASKS[2])[1],
        lambda evaluate: evaluate.measure(GateImportance, MASKS[1]),
    ]
    for look in looks:
        found = look(first)
        assert torch.equal(found, look(again)) and found.abs().max() > 0
    assert first.computed > 0 == again.computed and first.spent == again.spent
    assert not torch.equal(again.slopes(MASKS[1])[1], again.slopes(MASKS[2])[1])
    other = functools.partial(GateImportance, dist_sync_on_step=True)
    assert torch.equal(
        again.measure(other, MASKS[1]), again.measure(GateImportance, MASKS[1])
    )  # another question
    assert not torch.equal(
        again.measure(GateImportance, MASKS[1], "signed"), again.measure(GateImportance, MASKS[1])
    )


def test_a_question_is_told_from_every_other():
    def nameless(layout):
        raise AssertionError

    named = [
        GateImportance,
        functools.partial(GateImportance, a=1),
        functools.partial(GateImportance, a=2),
        Evaluator,
    ]
    assert len({cache_key(measure=describe(thing)) for thing in named}) == len(named)
    for thing in (nameless, lambda layout: None):
        with pytest.raises(ValueError, match="no name of its own"):
            describe(thing)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("pick", [None, torch.tensor([20, 3, 17])])
def test_an_image_that_gives_no_number_is_named_and_nothing_is_kept(
    tmp_path, model, images, value, pick
):
    spoilt = images.clone()
    spoilt[17, 0, 0, 0] = value
    evaluate = make(model, spoilt, cache=MaskCache(tmp_path, "key"))
    with pytest.raises(
        UserError, match="NaN or infinite for 1 of 23 images, the first is image 17"
    ):
        evaluate(MASKS[:2], pick)
    assert not list(tmp_path.iterdir())
    others = torch.tensor([n for n in range(N) if n != 17])
    assert torch.equal(
        evaluate(MASKS[:2], others).right, make(model, images)(MASKS[:2], others).right
    )


def test_nan_in_what_a_mask_switches_off_is_no_accuracy_either(images):
    broken = tiny_vit()
    with torch.no_grad():
        broken.blocks[1].attn.qkv.weight[:] = torch.nan
    mhprobe.attach(broken)
    with pytest.raises(UserError, match="NaN or infinite for 23 of 23 images"):  # NaN * 0 is NaN
        make(broken, images)(torch.ones(1, 6, dtype=torch.bool))


@pytest.mark.parametrize("name", sorted(set(known_scores()) - {"labels"}))
def test_no_score_compares_with_an_unmasked_model_that_gives_no_number(name):
    outputs = torch.randn(N, 4)
    outputs[5, 2] = torch.nan
    with pytest.raises(
        UserError, match=r"the unmasked model is NaN or infinite for 1 of 23 images, .* image 5"
    ):
        known_scores()[name](outputs, LABELS)


@pytest.mark.parametrize("name", sorted(known_scores()))
def test_no_score_takes_nan_for_a_class(name, model, images):
    with torch.no_grad():
        own = model(images)
    spoilt = images.clone()
    spoilt[5] = torch.nan
    with pytest.raises(UserError, match="first is image 5"):
        make(model, spoilt, score=known_scores()[name](own, LABELS))(MASKS[:1])


@pytest.mark.parametrize("measure", [GateImportance, OneHead])
def test_no_more_images_are_counted_than_are_announced(model, images, measure, monkeypatch):
    """Two passes, of a measure that chooses first, were once counted against one."""
    counts = []

    @contextlib.contextmanager
    def progress(label, total, *options):
        counts.append([total])
        yield lambda pieces, *words: counts[-1].append(pieces)

    monkeypatch.setattr(evaluate, "progress", progress)
    wanted = make(model, images)
    wanted.slopes(MASKS[0])
    wanted.measure(measure, MASKS[0])
    assert len(counts) == 2 and all(total == sum(pieces) > 0 for total, *pieces in counts)
