"""Heads that masking curves switch off: their similarity, accuracy by kind of layer, and accuracy by class.

Shapes: A heads, K steps of a curve, M masks, P pairs, D draws, n images, C classes.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadLayout
from mhprobe.lab.papers.panels.columns import meanings
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.parts.units import make_units
from mhprobe.masking.random import Random
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.report.figures import classes, pairs
from mhprobe.report.figures import masking as drawing
from mhprobe.report.result import Result
from mhprobe.report.tables import from_rows
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.agreement import lowest
from mhprobe.stats.intervals import percentiles
from mhprobe.stats.significance import holm, mcnemar, significant, wilson

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def reported(material: Material) -> list[Curve]:
    """Return the curves of one path on the split to report, each name once."""
    return [
        curve
        for curve in {curve.name: curve for curve in material.curves()}.values()
        if len(curve.traces) == 1
    ]


def masked_at_each_step(material: Material, heads_per_step: int = 1) -> dict[str, Result]:
    """Draw a small grid of masked heads per step and curve, and of ``heads_per_step`` random heads of each layer."""
    masks = {curve.name: curve.traces[0].mask for curve in reported(material)}
    order = Random(repeats=1, per_layer=True, heads_per_step=heads_per_step)
    (path,) = order.paths(make_units("head", material.layout), material.layout)
    name = f"{heads_per_step} random\nof each layer"
    return {
        "masked": Result(
            figure=drawing.masked_at_each_step(material.layout, {**masks, name: path.masks()})
        )
    }


def among_masked(material: Material, draws: int = 2000) -> dict[str, Result]:
    """Compare heads masked before the drop among themselves, with those at the drop, and with those kept.

    The drop is the first step at which accuracy is significantly lower, as in
    masking/redundant_or_inert.py. Only pairs that the measure compared count (by default heads of
    one block). Since layers differ in similarity and in order, the statistic is a pair's similarity
    above the mean of its two layers. Chance deals the same numbers of heads out anew within each
    layer, ``draws`` times.

    Table: curve, measure, group_a, group_b, pairs, mean, null (of the measure), above, chance_low,
    chance_high (95 % of the draws), p (two-sided), p_holm (over the rows of a curve and a measure).
    """
    site = material.layout.site_of_head
    rows = [
        {"curve": curve.name, "measure": name, **row}
        for curve in reported(material)
        for name in material.names
        for columns in [material.columns(name)]
        for row in likeness(
            columns["value"], columns.get("null"), phases(curve), site, draws, material.seed
        )
    ]
    panel = pairs.groups_of_pairs(rows) if rows else None
    return {"likeness": Result(from_rows(rows), panel).saying(*meanings(material))} if rows else {}


def phases(curve: Curve) -> dict[str, Tensor]:
    """(A,) bool each: heads masked before the drop of accuracy, at it, and kept after it."""
    (trace,) = curve.traces
    drop = curve.drop
    before = trace.mask[min(drop, len(trace.mask)) - 1]
    at = trace.mask[drop] & ~before if drop < len(trace.mask) else torch.zeros_like(before)
    return {"before": before, "at": at, "kept": ~before & ~at}


def likeness(
    value: Tensor,
    null: Tensor | None,
    groups: dict[str, Tensor],
    site: Tensor,
    draws: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return rows of ``among_masked`` for every two groups with compared pairs.

    value, null: (A, A), NaN for pairs that were not compared. groups: (A,) bool each, disjoint.
    site: (A,) layer of each head, ascending.
    """
    first_P, second_P = value.isfinite().triu(1).nonzero().unbind(1)
    if not len(first_P):
        return []
    value_P = value[first_P, second_P].double()
    cell_P = site[first_P] * (int(site.max()) + 1) + site[second_P]
    means = torch.bincount(cell_P, value_P) / torch.bincount(cell_P).clamp(min=1)
    above_P = value_P - means[cell_P]

    label_A = torch.stack(list(groups.values())).int().argmax(0)
    generator = torch.Generator().manual_seed(seed)
    dealt_DA = label_A[
        (site + torch.rand(draws, len(site), generator=generator, dtype=torch.float64)).argsort(1)
    ]

    def kind(label: Tensor) -> Tensor:
        one, other = label[..., first_P], label[..., second_P]
        return torch.minimum(one, other) * len(groups) + torch.maximum(one, other)

    kind_P = kind(label_A)
    kind_DP = kind(dealt_DA)
    rows = []
    for (a, name_a), (b, name_b) in itertools.combinations_with_replacement(enumerate(groups), 2):
        here = kind_P == a * len(groups) + b
        if not here.any():
            continue
        above = above_P[here].mean()
        drawn_D = (above_P * (kind_DP == a * len(groups) + b)).sum(
            1
        ) / here.sum()  # as many pairs in every draw
        low, high = (end.item() for end in percentiles(drawn_D))
        row = {
            "group_a": name_a,
            "group_b": name_b,
            "pairs": int(here.sum()),
            "mean": value_P[here].mean().item(),
        }
        row["null"] = "" if null is None else null[first_P, second_P][here].double().mean().item()
        p = (1 + (drawn_D.abs() >= above.abs() - 1e-12).sum().item()) / (1 + draws)
        rows.append({**row, "above": above.item(), "chance_low": low, "chance_high": high, "p": p})
    adjusted = holm(torch.tensor([row["p"] for row in rows], dtype=torch.float64)).tolist()
    return [{**row, "p_holm": p} for row, p in zip(rows, adjusted, strict=True)]


def kinds_of_layers(material: Material, shares: Sequence[float] = SHARES) -> dict[str, Result]:
    """Measure accuracy on test images as the heads of one kind of layer are masked, least important first.

    After Michel, Levy & Neubig, 2019, Figure 4. Importance (l2-normalised per layer) is of
    validation images.

    shares: of the kind's heads that are masked. Table: kind, share, heads_masked, heads, accuracy,
    low, high, loss.
    """
    model, walk, sizes = material.model, material.walk, material.data.sizes
    label = "kinds of layers on {}" if material.first else ""
    select, test = (
        Evaluator(model, walk(split=split), sizes[split], label.format(split))
        for split in ("val", "test")
    )
    make = functools.partial(GateImportance, normalize="layer_l2")
    score_A = select.measure(
        make, torch.zeros(material.layout.num_heads, dtype=torch.bool)
    ).double()
    cases = [
        (name, on_A, share)
        for name, on_A in masks_by_kind(material.layout).items()
        for share in shares
    ]
    masks = [
        lowest(torch.where(on_A, score_A, torch.inf), round(share * int(on_A.sum())))
        for _, on_A, share in cases
    ]
    scores = test(torch.stack(masks))
    low, high = wilson(scores.correct, torch.tensor(scores.images))
    numbers = {"accuracy": scores.accuracy, "low": low, "high": high, "loss": scores.mean_loss}
    rows: list[dict[str, Any]] = [
        {
            "kind": name,
            "share": share,
            "heads_masked": int(masks[m].sum()),
            "heads": int(on_A.sum()),
        }
        | {column: values[m].item() for column, values in numbers.items()}
        for m, (name, on_A, share) in enumerate(cases)
    ]
    result = Result(from_rows(rows), drawing.kinds_of_layers(rows, material.chance))
    return {"curves": result.saying("accuracy", "the masked heads are needed less")}


def masks_by_kind(layout: HeadLayout) -> dict[str, Tensor]:
    """(A,) masks of heads by kind of layer: early, middle, late or stages; plain and shifted windows."""
    sites = layout.sites
    if layout.num_stages > 1:
        kind_of = {
            f"stage {stage}": [s.stage == stage for s in sites]
            for stage in range(layout.num_stages)
        }
    else:
        third = [3 * number // len(sites) for number in range(len(sites))]
        kind_of = {
            name: [t == i for t in third] for i, name in enumerate(("early", "middle", "late"))
        }
    shifted = [s.windows is not None and any(s.windows.shift) for s in sites]
    if any(shifted):
        kind_of |= {"plain windows": [not on for on in shifted], "shifted windows": shifted}
    masks = {name: torch.tensor(on)[layout.site_of_head] for name, on in kind_of.items()}
    return {name: mask for name, mask in masks.items() if mask.any()}


def classes_at_steps(material: Material) -> dict[str, Result]:
    """Measure accuracy within each class at each step of a masking curve; a result per curve of one path.

    Every cell is compared with the unmasked model on the same images (McNemar's exact test, Holm's
    correction over the cells of a curve; NaN if test images chose the order). Table: curve, step,
    heads_masked, class, accuracy, images, drop, p, p_holm.
    """
    data = material.data
    labels = torch.from_numpy(data.splits["test"].labels)
    images = labels.bincount(minlength=data.num_classes)
    results = {}
    for curve in reported(material):
        (trace,) = curve.traces
        score = material.scorers.on("test").under(material.described.named(curve.name))
        accuracy, p, p_holm = accuracy_by_class(
            score(trace.mask).right.cpu(), labels, data.num_classes
        )
        p, p_holm = (part * torch.nan if curve.optimistic else part for part in (p, p_holm))
        off = trace.mask.sum(1).tolist()
        columns = {"accuracy": accuracy, "images": images.expand_as(accuracy)}
        columns |= {"drop": accuracy[:1] - accuracy, "p": p, "p_holm": p_holm}
        rows: list[dict[str, Any]] = [
            {"curve": curve.name, "step": trace.step[k], "heads_masked": off[k], "class": name}
            | {column: values[k, c].item() for column, values in columns.items()}
            for k in range(len(off))
            for c, name in enumerate(data.class_names)
        ]
        panel = classes.classes_at_steps(accuracy, significant(p_holm), off, data.class_names)
        meaning = f"{curve.scored.right} within the class", "the class needs the masked heads less"
        results[curve.name] = Result(from_rows(rows), panel).saying(*meaning)
    return results


def accuracy_by_class(right: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """(K, C) accuracy, p and p_holm of the classes of a curve; p are 1 at step 0, all NaN for an empty class.

    right: (K, n) bool, step 0 unmasked. labels: (n,).
    """
    of_class = torch.nn.functional.one_hot(labels, classes).double()
    count = of_class.sum(0)
    before = right[:1]
    hit, lost, won = (
        flags.double() @ of_class for flags in (right, before & ~right, right & ~before)
    )
    accuracy = torch.where(count > 0, hit / count.clamp(min=1), torch.nan)
    p = mcnemar(lost.long().flatten(), won.long().flatten()).view_as(hit).double()
    p[:, count == 0] = torch.nan
    adjusted = torch.ones_like(p)
    adjusted[1:] = holm(p[1:].flatten()).view_as(p[1:])
    return accuracy, p, adjusted
