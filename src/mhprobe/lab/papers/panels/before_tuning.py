"""Heads before, along and after fine-tuning, on the same images.

A change is the mean over folds of images of (after - before), with Student's interval over folds. A
head's likeness to itself before is the SVCCA of its outputs in the two networks (Raghu et al. 2017,
arXiv 1706.05806), measured in a layout whose sites have the heads of both networks.

Shapes: A heads of all sites, H of one, F folds, P networks in the order of tuning.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, gives_features
from mhprobe.data.batch import Walk
from mhprobe.data.draws import evenly_spread
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.svcca import SVCCA
from mhprobe.recording.measuring import label_of, measure_or_raise, recorded
from mhprobe.report import tables
from mhprobe.report.figures import heads, training
from mhprobe.report.result import Result
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm, t_interval
from mhprobe.weights.foreign import load_foreign

FOLDS = 10
ENDS = ("", "_low", "_high")
Files = str | Path | Sequence[str | Path]
ITSELF = "SVCCA with itself before (dotted: chance)"


def before_tuning(material: Material, before: Files, images: int = 500) -> dict[str, Result]:
    """Measure every head before and after tuning, and the likeness of its outputs in the two networks.

    before: file of the weights that tuning began with; or several, that one and those of each epoch
    but the last, which are the network's own. images: test images, at most.

    Table: ``itself`` in [0, 1], the SVCCA of a head with itself before (larger: less changed), with
    ``itself_low``, ``itself_high`` and ``itself_null`` (by chance); per measure ``<name>_before``,
    ``_after`` and ``_change`` (after - before), with ``_low``, ``_high`` and ``_p`` (of no change,
    Holm over heads and measures). ``<name>_before``, ``_epoch_1`` ... ``_after``, with ``_low`` and
    ``_high``, are also in a figure per block.

    UserError for a network with a classifier, weights of another architecture, and a measure of
    pairs or labels.
    """
    layout = material.layout
    measures = {name: material.about(name) for name in material.names}
    if not gives_features(material.model):
        raise UserError(
            "before_tuning: weights before tuning have no classifier, this network has one. Leave "
            "it out "
            "(num_classes=0 of the backbone)."
        )
    if unfit := [
        name
        for name, measure in measures.items()
        if measure.kind != "per_head" or "labels" in measure.needs
    ]:
        raise UserError(
            f"before_tuning: {unfit[0]} is of pairs or labels, expected measures of single heads."
        )
    files = [before] if isinstance(before, str | Path) else list(before)
    alike, values = _along(material, measures, files, images)
    curves = {
        "itself": torch.stack([torch.stack([of[f"itself{end}"] for of in alike]) for end in ENDS])
    }
    curves |= {
        name: torch.stack(t_interval(torch.stack(points, 1))) for name, points in values.items()
    }
    columns = alike[-1] | _changes(values)
    epochs = ["before", *(f"epoch_{number}" for number in range(1, len(files))), "after"]
    for (name, points), (k, end) in itertools.product(curves.items(), enumerate(ENDS)):
        columns |= {
            f"{name}_{epoch}{end}": of_heads
            for epoch, of_heads in zip(epochs, points[k], strict=True)
        }
    labels = {name: label_of(measure, "norm") for name, measure in measures.items()}
    panel = heads.before_tuning(layout, columns, labels)
    table = tables.per_head(layout, columns)
    results = {"before_tuning": Result(table, panel, drawn="before_tuning")}
    for number, site in enumerate(layout.sites):
        span = layout.span(number)
        of_block = {labels.get(name, ITSELF): ends[..., span] for name, ends in curves.items()}
        panel = training.over_epochs(of_block, columns["itself_null"][span].mean().item())
        results[f"tuning_block_{site.block}"] = Result(figure=panel, drawn="over_epochs")
    meaning = "SVCCA of a head with itself before tuning", "tuning changed the head less"
    return {
        name: result._replace(of=material.of(images)).saying(*meaning)
        for name, result in results.items()
    }


def _along(
    material: Material, measures: Mapping[str, Measure], files: Sequence[str | Path], images: int
) -> tuple[list[dict[str, Tensor]], dict[str, list[Tensor]]]:
    """Return the columns of ``_itself`` of every network, and by measure its values (F, A)."""
    chosen = torch.tensor(evenly_spread(images, material.data.sizes["test"]))
    if len(chosen) < 2 * FOLDS:
        raise UserError(
            f"before_tuning: images: expected at least {2 * FOLDS} test images, got {len(chosen)}."
        )
    folds = [material.walk(chosen[fold::FOLDS]) for fold in range(FOLDS)]
    older, alike = next(_networks(material, files)), []
    values: dict[str, list[Tensor]] = {name: [] for name in measures}
    with warnings.catch_warnings(
        action="ignore", category=MeasureWarning
    ):  # unchanged heads are duplicates
        for model in _networks(material, files):
            alike.append(_itself(material.layout, older, model, material.walk(chosen)))
            of_folds = [measure_or_raise(model, measures, fold, of="norm") for fold in folds]
            for name, points in values.items():
                points.append(
                    torch.stack([columns[name]["value"].double().cpu() for columns in of_folds])
                )
    return alike, values


def _networks(material: Material, files: Sequence[str | Path]) -> Iterator[nn.Module]:
    """Yield the networks of these weights, one after another in one module, and that of the material."""
    twin = material.untrained()
    for file in files:
        load_foreign(backbone_of(twin), file, "before_tuning.before")
        yield twin
    yield material.model


def _itself(
    layout: HeadLayout, older: nn.Module, network: nn.Module, walk: Walk
) -> dict[str, Tensor]:
    both = HeadLayout(
        tuple(dataclasses.replace(site, num_heads=2 * site.num_heads) for site in layout.sites)
    )
    measure = SVCCA(both)
    for (_, before), (_, after) in zip(
        recorded(older, walk()), recorded(network, walk()), strict=True
    ):
        beside = (
            torch.cat(pair, 2) for pair in zip(before.z, after.z, strict=True)
        )  # the heads of both in every site
        measure.update(dataclasses.replace(after, z=tuple(beside)))
    columns = measure.columns()
    halves = [part.chunk(2) for part in both.split(torch.arange(both.num_heads))]
    first, second = (torch.cat(half) for half in zip(*halves, strict=True))
    ends = {"": "value", "_low": "low", "_high": "high", "_null": "null"}
    return {
        f"itself{end}": columns[name][first, second].double().cpu() for end, name in ends.items()
    }


def _changes(values: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return the columns of changes from the first network to the last.

    values: (F, A) of each network, by measure.
    """
    columns: dict[str, Tensor] = {}
    p = []
    for name, points in values.items():
        change, low, high = t_interval(points[-1] - points[0])
        p.append(p_of_interval(change, high - change, FOLDS - 1))
        columns |= {f"{name}_change": change, f"{name}_low": low, f"{name}_high": high}
    corrected = holm(torch.cat(p)).chunk(len(p)) if p else ()
    return columns | {f"{name}_p": numbers for name, numbers in zip(values, corrected, strict=True)}
