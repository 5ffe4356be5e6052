"""Evaluation counts every image once, whatever the batches, their order and their padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.scoring.parts.tally import Tally, tally

N, C = 23, 4


@pytest.fixture(scope="module")
def logits() -> Tensor:
    return torch.randn(N, C, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.randint(0, C, (N,), generator=torch.Generator().manual_seed(1))


def batch(labels: Tensor, index: list[int], padding: int = 0) -> Batch:
    """The images ``index``, and some of them again that do not count."""
    index = torch.tensor(index + index[:1] * padding)
    valid = torch.arange(len(index)) < len(index) - padding
    return Batch(torch.empty(len(index), 3, 1, 1), labels[index], index, valid)


def fed(
    tally: Tally, logits: Tensor, labels: Tensor, size: int, order: list[int], padding: int = 0
) -> Tally:
    for start in range(0, N, size):
        part = batch(labels, order[start : start + size], padding)
        tally.update(part, logits[part.index])
    return tally


def expected(logits: Tensor, labels: Tensor) -> tuple[int, float]:
    """Image by image, in plain Python floats."""
    correct, loss = 0, 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        correct += max(range(C), key=row.__getitem__) == label
        loss += torch.tensor(row, dtype=torch.float64).exp().sum().log().item() - row[label]
    return correct, loss / N


@pytest.mark.parametrize(("size", "padding"), [(N, 0), (5, 0), (1, 0), (5, 2)])
def test_counts_are_exact_and_losses_are_means_over_images(logits, labels, size, padding):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(size)).tolist()
    result = fed(Tally(N), logits, labels, size, order, padding).compute()
    correct, loss = expected(logits, labels)
    assert 0 < correct < N
    assert int(result["correct"]) == correct and int(result["images"]) == N
    assert float(result["accuracy"]) == correct / N
    assert float(result["loss"]) == pytest.approx(loss, rel=1e-12)


def test_ranks_add_up(logits, labels):
    first, second = Tally(N), Tally(N)
    for own, share in ((first, range(0, N, 2)), (second, range(1, N, 2))):
        part = batch(labels, list(share))
        own.update(part, logits[part.index])
    for name in (
        "right",
        "loss",
        "seen",
    ):  # what torchmetrics does between ranks, for states that are sums
        assert (
            second._reductions[name] is torch.sum
            or second._reductions[name].__name__ == "dim_zero_sum"
        )
        setattr(first, name, getattr(first, name) + getattr(second, name))
    alone = fed(Tally(N), logits, labels, N, list(range(N))).compute()
    together = first.compute()
    assert torch.equal(together["right"], alone["right"])
    torch.testing.assert_close(
        together["loss"], alone["loss"], rtol=1e-12, atol=0
    )  # float64, two orders of adding


@pytest.mark.parametrize(
    ("indices", "said"),
    [([*range(N - 1)], "saw 22 of 23"), ([*range(N), 3], "1 of them more than once")],
)
def test_an_image_missed_or_counted_twice_gives_no_number(logits, labels, indices, said):
    tally = Tally(N)
    part = batch(labels, indices)
    tally.update(part, logits[part.index])
    with pytest.raises(RuntimeError) as refused:
        tally.compute()
    assert said in " ".join(str(refused.value).split())


def test_a_part_of_the_images_can_be_asked_for(logits, labels):
    tally = Tally(N, check_images=False)
    part = batch(labels, [4, 5])
    tally.update(part, logits[part.index])
    assert int(tally.compute()["images"]) == 2


def test_a_plain_model_is_tallied_as_it_is(labels):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, C))
    images = torch.randn(N, 3, 1, 1, generator=torch.Generator().manual_seed(5))
    parts = [
        batch(labels, list(range(start, min(start + 7, N))), padding=2) for start in range(0, N, 7)
    ]
    seen = []
    found = tally(
        model, (part._replace(images=images[part.index]) for part in parts), N, seen.append
    )
    right, loss = expected(model(images).detach(), labels)
    assert (int(found["correct"]), int(found["images"]), len(seen)) == (right, N, 4)
    assert float(found["loss"]) == pytest.approx(loss, rel=1e-9)
    with torch.autocast(
        "cpu", dtype=torch.bfloat16
    ):  # asked inside somebody's autocast, it answers the same
        again = tally(model, [part._replace(images=images[part.index]) for part in parts], N)
    assert torch.equal(again["loss"], found["loss"])


def test_the_same_logits_give_the_same_numbers_whoever_asks(logits, labels):
    from mhprobe.heads import HeadBatch
    from mhprobe.measures.parts.losses import outcomes, outcomes_of

    right, loss = outcomes(logits.bfloat16(), labels)
    expected_right, expected_loss = zip(
        *(
            expected(row[None].bfloat16().double(), label[None])
            for row, label in zip(logits, labels, strict=True)
        ),
        strict=True,
    )
    assert right.long().tolist() == list(expected_right)
    torch.testing.assert_close(
        loss, N * torch.tensor(expected_loss, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    valid = torch.arange(N) < N - 3
    heads = HeadBatch(z=(), logits=logits.bfloat16(), labels=labels, valid=valid)
    under_masks = outcomes_of(heads, torch.stack([logits.bfloat16()] * 2), "one_head")
    assert torch.equal(under_masks[1], torch.stack([loss[valid]] * 2))


def test_logits_that_are_no_numbers_give_no_accuracy():
    logits, labels = torch.randn(N, 3), torch.zeros(N, dtype=torch.long)
    logits[4, 1] = torch.nan  # its argmax would be 1
    tally = fed(Tally(N), logits, labels, N, list(range(N)))
    with pytest.raises(
        UserError, match=rf"NaN or infinite for 1 of {N} images, the first is image 4"
    ):
        tally.compute()


def test_padding_that_is_no_number_is_left_aside():
    part = Batch(
        torch.zeros(2, 1),
        torch.zeros(2, dtype=torch.long),
        torch.tensor([0, 0]),
        torch.tensor([True, False]),
    )
    tally = Tally(1)
    tally.update(part, torch.tensor([[2.0, 1.0], [torch.nan, 0.0]]))
    assert tally.compute()["accuracy"] == 1


@pytest.mark.parametrize("place", [0, 2, 4])
def test_padding_counts_nowhere_and_breaks_nothing_wherever_it_is(logits, labels, place):
    """Outputs of padding may be NaN; those of an image may not, and the image is named by its own number."""
    index, valid = torch.tensor([3, 1, 4, 0, 2]), torch.ones(5, dtype=torch.bool)
    index[place], valid[place] = int(index[(place + 1) % 5]), False
    counted = sorted(index[valid].tolist())
    one = Batch(torch.empty(5, 3, 1, 1), labels[index], index, valid)
    outputs = logits[index].clone()
    outputs[place] = torch.nan
    tally = Tally(5, check_images=False)
    tally.update(one, outputs)
    assert tally.seen.nonzero().flatten().tolist() == counted
    assert int(tally.compute()["correct"]) == int(
        (logits[counted].argmax(1) == labels[counted]).sum()
    )
    outputs[(place + 2) % 5] = torch.inf
    tally.update(one, outputs)
    with pytest.raises(
        UserError, match=f"1 of 5 images, the first is image {index[(place + 2) % 5]}:"
    ):
        tally.compute()
