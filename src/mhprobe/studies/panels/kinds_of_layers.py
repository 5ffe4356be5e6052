"""Masking curves by kind of layer: heads of one kind only are masked, least important first.

Michel, Levy & Neubig, 2019, Figure 4, for the attention of encoder, decoder and between them. Here early, middle and
late blocks, the stages of a network that has several, and blocks whose windows are plain or shifted.

Shapes: A heads, M masks.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import masking as figure
from mhprobe.report.result import Result
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.agreement import lowest
from mhprobe.stats.significance import wilson

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def kinds_of_layers(material: Material, shares: Sequence[float] = SHARES) -> dict[str, Result]:
    """Importance (l2-normalised per layer) is measured on validation images, accuracy on test images.

    shares: of the kind's heads that are masked. Table: kind, share, heads_masked, heads, accuracy, low, high, loss.
    """
    model, data = material.model, material.data
    select, test = (
        Evaluator(
            model,
            functools.partial(data.batches, split, model.device),
            data.sizes[split],
            label=f"kinds of layers on {split}",
            show=material.first,
        )
        for split in ("val", "test")
    )
    heads = material.layout.num_heads
    make = functools.partial(GateImportance, normalize="layer_l2")
    score = select.measure(make, torch.zeros(heads, dtype=torch.bool))
    named = kinds(material.layout)
    masks = torch.stack([_lowest_of(score, kind_A, share) for kind_A in named.values() for share in shares])
    scores = test(masks)
    low, high = wilson(scores.correct, torch.tensor(scores.images))
    names = [(kind, int(kind_A.sum()), share) for kind, kind_A in named.items() for share in shares]
    rows: list[dict[str, Any]] = [
        {
            **{"kind": kind, "share": share, "heads_masked": int(mask.sum()), "heads": count},
            **{"accuracy": accuracy, "low": below, "high": above, "loss": loss},
        }
        for (kind, count, share), mask, accuracy, below, above, loss in zip(
            names, masks, *(each.tolist() for each in (scores.accuracy, low, high, scores.mean_loss)), strict=True
        )
    ]
    return {"curves": Result(tables.from_rows(rows), figure.kinds_of_layers(rows, material.chance))}


def kinds(layout: HeadLayout) -> dict[str, Tensor]:
    """By kind of layer the (A,) mask of its heads; a kind without heads is left out."""
    sites = layout.sites
    if layout.num_stages > 1:
        kind_of = {f"stage {stage}": [s.stage == stage for s in sites] for stage in range(layout.num_stages)}
    else:
        third = [min(2, 3 * number // len(sites)) for number in range(len(sites))]
        kind_of = {name: [t == i for t in third] for i, name in enumerate(("early", "middle", "late"))}
    shifted = [s.windows is not None and any(s.windows.shift) for s in sites]
    if any(shifted):
        kind_of |= {"plain windows": [not on for on in shifted], "shifted windows": shifted}
    per_head = {
        name: torch.tensor([on[number] for number, _, _ in layout], dtype=torch.bool) for name, on in kind_of.items()
    }
    return {name: mask for name, mask in per_head.items() if mask.any()}


def _lowest_of(score_A: Tensor, kind_A: Tensor, share: float) -> Tensor:
    """(A,) bool: the heads of lowest score of the kind, so many that they are this share of its heads."""
    return lowest(torch.where(kind_A, score_A.double(), torch.inf), round(share * int(kind_A.sum())))
