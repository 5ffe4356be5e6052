"""Accuracy within each class along a masking curve, step by step.

Every cell is compared with the unmasked model on the same images of the class (McNemar's exact test, Holm's correction
over all cells of the curve).

Shapes: K steps, n images, C classes.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures import classes as figure
from mhprobe.report.result import Result
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.significance import holm, mcnemar
from mhprobe.studies.panels.masked import reported


class Cells(NamedTuple):
    """Return accuracy (K, C) in [0, 1], step 0 unmasked; p, p_holm (K, C), 1 at step 0. NaN for an empty class."""

    accuracy: Tensor
    p: Tensor
    p_holm: Tensor


def classes_at_steps(material: Material) -> dict[str, Result]:
    """A result per curve of one path. Table: curve, step, heads_masked, class, accuracy, drop, p, p_holm, images."""
    model, data = material.model, material.data
    walk = functools.partial(data.batches, "test", model.device)
    score = Evaluator(model, walk, data.sizes["test"], label="classes along curves", show=material.first)
    labels = torch.from_numpy(data.splits["test"].labels)
    images = labels.bincount(minlength=data.num_classes)
    results = {}
    for curve in reported(material):
        (trace,) = curve.traces
        found = cells(score(trace.mask).right.cpu(), labels, data.num_classes)
        off = trace.mask.sum(1).tolist()
        rows: list[dict[str, Any]] = [
            {
                **{"curve": curve.name, "step": trace.step[k], "heads_masked": off[k], "class": data.class_names[c]},
                **{"accuracy": found.accuracy[k, c].item(), "images": images[c].item()},
                **{"drop": (found.accuracy[0, c] - found.accuracy[k, c]).item()},
                **{"p": found.p[k, c].item(), "p_holm": found.p_holm[k, c].item()},
            }
            for k in range(len(off))
            for c in range(data.num_classes)
        ]
        drawn = figure.classes_at_steps(found.accuracy, found.p_holm < 0.05, off, data.class_names)
        results[curve.name] = Result(tables.from_rows(rows), drawn)
    return results


def cells(right: Tensor, labels: Tensor, classes: int) -> Cells:
    """Test the classes of a curve.

    right: (K, n) bool, step 0 unmasked. labels: (n,).
    """
    of_class = torch.nn.functional.one_hot(labels, classes).double()
    count = of_class.sum(0)
    before = right[:1]
    hit, lost, won = (each.double() @ of_class for each in (right, before & ~right, right & ~before))
    accuracy = torch.where(count > 0, hit / count.clamp(min=1), torch.nan)
    p = mcnemar(lost.long().flatten(), won.long().flatten()).view_as(hit).double()
    p[:, count == 0] = torch.nan
    adjusted = torch.ones_like(p)
    adjusted[1:] = holm(p[1:].flatten()).view_as(p[1:])
    return Cells(accuracy, p, adjusted)
