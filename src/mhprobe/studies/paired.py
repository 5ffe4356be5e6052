"""Two trained models on the same test images: is one better? Voita et al. 2019, Table 2, with a test.

Shapes: N test images.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mhprobe.classifier import GatedClassifier
from mhprobe.data.base import ImageData
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.significance import holm, mcnemar, paired_difference


def right(model: GatedClassifier, data: ImageData, keep: tuple[int | None, float | str] | None = None) -> Tensor:
    """(N,) bool: the test images that are classified rightly. A collective.

    keep: of a model whose gates are learned, how many stay and the threshold, as in ``HeadGates.kept``: its gates are
    then exactly 0 and 1.
    """
    gates = model.gates
    kept = gates.effective().float() if keep is None else gates.kept(*keep).float()
    walk = functools.partial(data.batches, "test", model.device)
    with gates.fixed(kept):
        score = Evaluator(model, walk, data.sizes["test"])
        return score(torch.zeros(1, gates.layout.num_heads, dtype=torch.bool)).right[0].cpu()


def compared(pruned: Tensor, scratch: Tensor) -> tuple[float, float, float, float]:
    """(N,) bool each, right or not -> scratch - pruned, its 95 % interval, and McNemar's p."""
    lost, won = ((a & ~b).sum()[None] for a, b in ((pruned, scratch), (scratch, pruned)))
    low, high = paired_difference((pruned & scratch).sum()[None], lost, won, torch.tensor([len(pruned)]))
    delta = (won - lost).item() / len(pruned)
    # the interval is of before - after
    return delta, -high.item(), -low.item(), mcnemar(lost, won).item()


def corrected(p: Sequence[float]) -> list[float]:
    """After Holm's correction over all of them."""
    return holm(torch.tensor(p, dtype=torch.float64)).tolist()
