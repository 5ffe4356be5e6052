"""Evaluation counts every image once, whatever the batches, their order and their padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mhprobe.data.batch import Batch
from mhprobe.scoring.tally import Tally

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


def fed(tally: Tally, logits: Tensor, labels: Tensor, size: int, order: list[int], padding: int = 0) -> Tally:
    for start in range(0, N, size):
        part = batch(labels, order[start : start + size], padding)
        tally.update(part, logits[part.index])
    return tally


def expected(logits: Tensor, labels: Tensor) -> tuple[int, float]:
    """Image by image, in plain Python floats."""
    correct, loss = 0, 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        correct += max(range(C), key=row.__getitem__) == label
        loss += torch.tensor(row).double().exp().sum().log().item() - row[label]
    return correct, loss / N


@pytest.mark.parametrize(("size", "padding"), [(N, 0), (5, 0), (1, 0), (5, 2)])
def test_counts_are_exact_and_losses_are_means_over_images(logits, labels, size, padding):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(size)).tolist()
    result = fed(Tally(N), logits, labels, size, order, padding).compute()
    correct, loss = expected(logits, labels)
    assert 0 < correct < N
    assert int(result["correct"]) == correct and int(result["images"]) == N
    assert float(result["accuracy"]) == correct / N
    assert float(result["loss"]) == pytest.approx(loss, rel=1e-6)  # a float32 logarithm per image


def test_ranks_add_up(logits, labels):
    first, second = Tally(N), Tally(N)
    for tally, share in ((first, range(0, N, 2)), (second, range(1, N, 2))):
        part = batch(labels, list(share))
        tally.update(part, logits[part.index])
    for name in ("correct", "loss", "seen"):  # what torchmetrics does between ranks, for states that are sums
        assert second._reductions[name] is torch.sum or second._reductions[name].__name__ == "dim_zero_sum"
        setattr(first, name, getattr(first, name) + getattr(second, name))
    alone = fed(Tally(N), logits, labels, N, list(range(N))).compute()
    together = first.compute()
    assert torch.equal(together["correct"], alone["correct"])
    torch.testing.assert_close(together["loss"], alone["loss"], rtol=1e-12, atol=0)  # float64, two orders of adding


@pytest.mark.parametrize(
    ("indices", "said"), [([*range(N - 1)], "saw 22 of 23"), ([*range(N), 3], "1 of them more than once")]
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
