"""Scores of many head masks on one split, walking the data once: what masking searches and curves stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from mhprobe.data.batch import Batch
from mhprobe.gates import gates_of
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.progress import progress
from mhprobe.tally import Tally


def evaluator(
    model: nn.Module, batches: Callable[[], Iterable[Batch]], num_images: int, label: str = "", show: bool = False
) -> Evaluate:
    """A function from masks (M, A) bool, True = off, to their Scores on the split.

    batches: starts a new walk over the split's transformed batches; under DDP each rank walks its share.
    label, show: the progress bar's text, and whether to draw one.
    """
    gates = gates_of(model)
    device = gates.values.device

    def evaluate(masks: Tensor) -> Scores:
        tally = Tally(num_images, num_masks=len(masks)).to(device)
        was_training = model.training
        model.eval()
        try:
            with torch.inference_mode(), progress(f"{label} {len(masks)} masks", num_images, show=show) as done:
                for batch in batches():
                    for number, mask in enumerate(masks):
                        with gates.masked(mask):
                            tally.update(batch, model(batch.images), number)
                    done(int(batch.valid.sum()))
        finally:
            model.train(was_training)
        result = {name: value.cpu().reshape(-1) for name, value in tally.compute().items()}
        images = int(result["images"])
        return Scores(correct=result["correct"], loss=result["loss"] * images, images=images)

    return evaluate
