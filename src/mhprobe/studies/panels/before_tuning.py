"""Heads before and after fine-tuning, on the same images.

A change is the mean over folds of images of (after - before), with Student's interval over folds. A head's likeness to
itself before is the SVCCA of its outputs in the two networks (Raghu et al. 2017, arXiv 1706.05806), measured in a
layout whose sites have the heads of both networks.

Shapes: A heads of all sites, F folds.
"""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, gives_features
from mhprobe.data.draws import evenly
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.svcca import SVCCA
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import Walk, label_of, measured, recorded
from mhprobe.report import tables
from mhprobe.report.figures import heads as figure
from mhprobe.report.result import Result
from mhprobe.stats.intervals import interval, p_of_interval
from mhprobe.stats.significance import holm
from mhprobe.weights.foreign import load_foreign

FOLDS = 10


def before_tuning(material: Material, before: str | Path, images: int = 500) -> dict[str, Result]:
    """Measure every head before and after tuning, and the likeness of its outputs in the two networks.

    before: file of the weights that tuning began with. images: test images, at most.

    Table: ``itself`` in [0, 1], the SVCCA of a head with itself before (larger: less changed), with ``itself_low``,
    ``itself_high`` and ``itself_null`` (by chance); per measure ``<name>_before``, ``_after`` and ``_change`` (after -
    before), with ``_low``, ``_high`` and ``_p`` (of no change, Holm over heads and measures).

    UserError for a network with a classifier, weights of another architecture, and a measure of pairs or labels.
    """
    layout, network = material.layout, material.model
    measures = {name: material.about(name) for name in material.names}
    if not gives_features(network):
        raise UserError(
            "before_tuning: weights before tuning have no classifier, this network has one. Leave it out "
            "(num_classes=0 of the backbone)."
        )
    if unfit := [name for name, measure in measures.items() if measure.kind != "per_head" or "labels" in measure.needs]:
        raise UserError(f"before_tuning: {unfit[0]} is of pairs or labels, expected measures of single heads.")
    older = material.untrained()
    load_foreign(backbone_of(older), before, "before_tuning.before")
    chosen = torch.tensor(evenly(images, material.data.sizes["test"]))
    if len(chosen) < 2 * FOLDS:
        raise UserError(f"before_tuning: images: expected at least {2 * FOLDS} test images, got {len(chosen)}.")
    walk = functools.partial(material.data.batches, "test", network.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeasureWarning)  # a head that did not change is a duplicate of itself
        columns = _itself(layout, older, network, functools.partial(walk, images=chosen))
        folds = [functools.partial(walk, images=chosen[fold::FOLDS]) for fold in range(FOLDS)]
        columns |= _changes(measures, older, network, folds)
    labels = {name: label_of(measure, "norm") for name, measure in measures.items()}
    drawn = figure.before_tuning(layout, columns, labels)
    table = tables.per_head(layout, columns)
    about = "SVCCA of a head with itself before tuning", "tuning changed the head less"
    return {"before_tuning": Result(table, drawn, drawn="before_tuning", of=material.of(images)).saying(*about)}


def _itself(layout: HeadLayout, older: nn.Module, network: nn.Module, walk: Walk) -> dict[str, Tensor]:
    both = HeadLayout(tuple(dataclasses.replace(site, num_heads=2 * site.num_heads) for site in layout.sites))
    measure = SVCCA(both)
    for (_, before), (_, after) in zip(recorded(older, walk()), recorded(network, walk()), strict=True):
        beside = (torch.cat(pair, 2) for pair in zip(before.z, after.z, strict=True))  # the heads of both in every site
        measure.update(dataclasses.replace(after, z=tuple(beside)))
    columns = measure.columns()
    halves = [part.chunk(2) for part in both.split(torch.arange(both.num_heads))]
    first, second = (torch.cat(half) for half in zip(*halves, strict=True))
    ends = {"": "value", "_low": "low", "_high": "high", "_null": "null"}
    return {f"itself{end}": columns[name][first, second].double().cpu() for end, name in ends.items()}


def _changes(
    measures: Mapping[str, Measure], older: nn.Module, network: nn.Module, folds: Sequence[Walk]
) -> dict[str, Any]:
    pairs = [[measured(model, measures, fold, of="norm") for model in (older, network)] for fold in folds]
    columns: dict[str, Any] = {}
    for name in measures:
        values = [torch.stack([of_fold[name]["value"].double().cpu() for of_fold in pair]) for pair in pairs]
        before, after = torch.stack(values).unbind(1)  # (F, A)
        change = after - before
        low, high = interval(change.mean(0), change.std(0) / len(folds) ** 0.5, len(folds) - 1)
        p = p_of_interval(change.mean(0), high - change.mean(0), len(folds) - 1)
        parts = {"before": before.mean(0), "after": after.mean(0), "change": change.mean(0)}
        parts |= {"low": low, "high": high, "p": p}
        columns |= {f"{name}_{part}": values for part, values in parts.items()}
    corrected = holm(torch.cat([columns[f"{name}_p"] for name in measures])) if measures else torch.empty(0)
    for name, p in zip(measures, corrected.chunk(max(1, len(measures))), strict=False):
        columns[f"{name}_p"] = p
    return columns
