"""Exact accuracy and loss over valid images, each seen once; independent of batch size, order and ranks."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from mhprobe.data.batch import Batch
from mhprobe.measures.base import all_reduce
from mhprobe.recording.outputs import broken, logits_of, refuse_broken
from mhprobe.scoring.base import Score
from mhprobe.scoring.labels import Labels


class Tally(Metric):
    """Correct predictions, summed cross-entropy in nats and the images seen.

    check_images: RuntimeError unless every image 0 ... N - 1 was seen exactly once. score: by
    default of labels.
    """

    full_state_update = False
    right: (
        Tensor  # (N,) how often each image was counted as right: its largest logit is the label's
    )
    loss: Tensor  # () float64 sum of cross-entropy over valid images
    seen: Tensor  # (N,) how often each image of the split was counted
    broken: Tensor  # (N,) how often its outputs were NaN or infinite

    def __init__(
        self, num_images: int, check_images: bool = True, score: Score | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dist_sync_fn": all_reduce, **kwargs})
        self.check_images, self.score = check_images, score or Labels()
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("right", "seen", "broken"):
            self.add_state(name, torch.zeros(num_images, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, batch: Batch, logits: Tensor) -> None:
        index = batch.index[batch.valid]
        right, loss = self.score(logits[None, batch.valid], index, batch.labels[batch.valid])
        self.right.index_add_(0, index, right[0].long())
        self.loss += loss.sum()
        self.seen.index_add_(0, index, torch.ones_like(index))
        self.broken.index_add_(0, index, broken(logits[batch.valid]).long())

    def compute(self) -> dict[str, Tensor]:
        """``accuracy``, ``loss`` (mean nats), ``correct``, ``images``, ``right`` (N,).

        UserError for NaN.
        """
        if self.check_images:
            refuse_missed(self.seen)
        refuse_broken(self.broken > 0, "evaluation: the output of the model")
        images = self.seen.sum()
        correct = self.right.sum()
        means = {"accuracy": correct.double() / images, "loss": self.loss / images}
        return {**means, "correct": correct, "images": images, "right": self.right > 0}


def refuse_missed(seen_N: Tensor) -> None:
    """Raise RuntimeError unless each image was seen exactly once."""
    if not bool((seen_N == 1).all()):
        raise RuntimeError(
            f"evaluation saw {int((seen_N > 0).sum())} of {len(seen_N)} images, "
            f"{int((seen_N > 1).sum())} of them more "
            f"than once: the numbers would be wrong. The sampler does not cover the split exactly."
        )


@torch.inference_mode()
def tally(
    model: nn.Module,
    batches: Iterable[Batch],
    num_images: int,
    done: Callable[[Batch], None] = lambda batch: None,
    score: Score | None = None,
) -> dict[str, Tensor]:
    """Evaluate ``model`` in eval mode and full precision; see ``Tally``.

    done: after each batch. A collective.
    """
    device = next(model.parameters()).device
    with torch.autocast(device.type, enabled=False):
        score = (score or Labels()).beside(lambda images: logits_of(model(images), model)[None])
        counted = Tally(num_images, score=score).to(device)
        for batch in batches:
            counted.update(batch, logits_of(model(batch.images), model))
            done(batch)
    return counted.compute()
