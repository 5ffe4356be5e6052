"""Questions about measures, how they agree and what they cost; about learned gates, and masking curves."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhprobe.data.base import ImageData
from mhprobe.data.source import other_classes
from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.gates import gates_of
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.heads import Ablation, Patching
from mhprobe.io.tensors import Outcomes
from mhprobe.io.written import counted
from mhprobe.masking.parts.trace import Curve, answering, numbers_at_step, totals
from mhprobe.measures.base import Measure
from mhprobe.measures.parts.jackknife import ENOUGH, FEWEST, FOLDS
from mhprobe.recording.measuring import label_of, needs_of, slices_of_batch
from mhprobe.recording.record import forward_equivalents
from mhprobe.report import tables
from mhprobe.report.figures.gates import BINS, gate_density
from mhprobe.report.figures.masking import Over
from mhprobe.report.measured import (
    Figures,
    agreement_of,
    of_curves,
    of_masked_heads,
    of_measure,
    two_data_sets,
    verdicts_on_curves,
)
from mhprobe.report.result import Result, Sample
from mhprobe.scoring.labels import Labels
from mhprobe.scoring.parts.tally import tally

log = logging.getLogger(__name__)


def measured(
    material: Material,
    kinds: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    kinds_of: Mapping[str, Sequence[str]] | None = None,
    options_of: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Result]:
    """Return tables of each measure, and a figure per kind, beside the freshly initialised network.

    kinds: of figures; none for the measure's own. options: of the figures. kinds_of, options_of: by
    measure, by kind.
    """
    results: dict[str, Result] = {}
    for name in material.names:
        about = material.about(name)
        drawn = (kinds_of or {}).get(name, ()) or kinds
        shown = drawn or (about.kind, *about.also)
        columns = material.columns(name)
        figures = Figures(
            {f"_{kind}": kind for kind in drawn} or None,
            {kind: {**(options or {}), **(options_of or {}).get(kind, {})} for kind in shown},
        )
        control, label = material.control(name), label_of(about, material.slopes_of)
        parts = of_measure(name, about, columns, control, label, figures=figures)
        notes = _empty_columns(about, columns)
        results |= {key: part._replace(about=part.about + notes) for key, part in parts.items()}
    return results


def _empty_columns(about: Measure, columns: Mapping[str, Tensor]) -> str:
    """Sentences on columns without a number: for want of images, or for every head and the measure says why; or ""."""
    none = [
        name
        for name, of in columns.items()
        if about.empty and of.isnan().all() and name not in ("low", "high")
    ]
    text = f" No head has a number in {', '.join(none)}: {about.empty}." if none else ""
    images = int(columns.get("images", ENOUGH))
    if (
        images >= ENOUGH
        or "low" not in columns
        or not (columns["low"].isnan() & columns["value"].isfinite()).any()
    ):
        return text
    more = [] if about.empty else [name for name, of in columns.items() if of.isnan().all()]
    names = ", ".join(dict.fromkeys(["low", "high", *more]))
    return (
        f" {counted(images, 'image')} gave no {names}: the interval of a mean, a test and a chance "
        "level take 2, the "
        f"interval of a similarity or a range {FEWEST} of {FOLDS} folds, which {ENOUGH} images "
        "nearly always fill."
    ) + text


def agreement(material: Material, top_k: int) -> dict[str, Result]:
    """Compare every two per-head measures over heads, and their controls.

    top_k: number of best heads compared.
    """
    values = values_per_head(material)
    controls = {name: material.control(name) for name in values}
    beside = {name: columns["value"] for name, columns in controls.items() if columns is not None}
    return {"agreement": agreement_of(values, beside, top_k)}


def second_to(first: ImageData, other: ImageData, where: str) -> ImageData:
    """Return ``other``, prepared, in the input size of ``first``.

    UserError, below ``where``, for other classes.
    """
    if differ := other_classes(other.class_names, first.class_names):
        raise UserError(f"{where}: {other.source.name} has {differ} Both need the same classes.")
    other.spec = first.spec
    return other


def on_another_data_set(material: Material, data: ImageData) -> dict[str, Result]:
    """Compare the measures with those on the test images of a second data set, prepared, with the same classes."""
    data.trainer = material.data.trainer  # it shards by rank
    other, first, second = material.on(data), material.data.source.name, data.source.name
    of = Sample(data.sizes["test"], "test", f"measured on {second}")
    results: dict[str, Result] = {}
    for name in material.names:
        about = material.about(name)
        label = label_of(about, material.slopes_of)
        results |= of_measure(name, about, other.columns(name), None, label, f"_{second}")
    results = {key: result._replace(of=result.of or of) for key, result in results.items()}
    values = values_per_head(material)
    again = values_per_head(other)
    results[f"{second}_against_{first}"] = two_data_sets(
        material.layout, first, second, values, again
    )
    return results


def cost(material: Material, names: Sequence[str]) -> dict[str, Result]:
    """Count the operations of the named measures per image, in forward passes, and those with masked heads."""
    measures = [item for name in names if isinstance(item := material.measures[name], Measure)]
    needs, of = needs_of(measures), material.slopes_of
    batch = next(iter(material.walk()()))
    batch = batch.part(slices_of_batch(len(batch.valid), material.layout, needs)[0])
    passes = {need for need in needs if not isinstance(need, Ablation | Patching)}
    shared = forward_equivalents(material.model, batch, passes, of)
    metrics = {"probe/forward_equivalents": shared}
    if passes != needs:
        masked = forward_equivalents(material.model, batch, needs, of) - shared
        metrics["probe/forward_equivalents_ablation"] = masked
    log.debug("%s", ", ".join(f"{name} {value:.1f}" for name, value in metrics.items()))
    return {"cost": Result(metrics=metrics, label="forward passes per image", of=Sample())}


def values_per_head(material: Material) -> dict[str, Tensor]:
    """(A,) values of the per-head measures of the question, by name; of those that could be measured."""
    values, heads = {}, material.layout.of("head").num_heads
    for name in material.names:
        about = material.measures[name]
        if isinstance(about, Measure) and about.kind == "per_head":
            with contextlib.suppress(UserError):  # raised by its own question
                values[name] = material.columns(name)["value"][:heads]
    return values


def learned_gates(
    material: Material, keep: int | None = None, threshold: float | str = 0.5
) -> dict[str, Result]:
    """Return the table gates, metrics, and for hard-concrete gates the figure gate_density.

    keep, threshold: as in ``HeadGates.kept``. Table: gate (in evaluation), open (P(open), or
    |gate|), kept (0 or 1), shifted (0 or 1) where a model has shifted windows. Metrics:
    gates/kept, gates/expected_open; test accuracy and loss with gates of exactly 0 and 1.
    """
    gates, data = gates_of(material.model), material.data
    kept = gates.kept(keep, threshold)
    with gates.fixed(kept.float()):
        binary = tally(material.model, material.walk()(), data.sizes["test"])
    columns = {"gate": gates.effective(), "open": gates.amount().detach(), "kept": kept.long()}
    metrics = {
        "gates/heads": gates.layout.num_heads,
        "gates/kept": int(kept.sum()),
        "gates/expected_open": float(columns["open"].sum()),
        "gates/open_not_zero": int((columns["gate"] != 0).sum()),
        "gates/binary_accuracy": float(binary["accuracy"]),
        "gates/binary_loss": float(binary["loss"]),
    }
    shifted = [site.windows is not None and any(site.windows.shift) for _, _, site in gates.layout]
    if any(shifted):
        columns["shifted"] = torch.tensor(shifted).long()
    table = tables.per_head(gates.layout, {name: values.cpu() for name, values in columns.items()})
    drawn = Result(table, metrics=metrics, decides="closed", of=Sample())
    results = {"gates": drawn.saying("learned gate", "the gate is more open")}
    if isinstance(gates, HardConcreteGates):
        spread = gates.distribution.binned(gates.log_alpha.detach(), BINS)
        figure = gate_density({}, (gates.effective().cpu(), spread.mean(0)))
        results["gate_density"] = Result(figure=figure, of=Sample(), drawn="gate_density")
    return results


def masking_curves(material: Material, over: Over = "heads") -> dict[str, Result]:
    """Return the masking curves, their totals, and the masked heads. over: the x axis."""
    curves = material.curves()
    heads = material.masked_heads(curves)
    curve_totals = totals(curves)
    chance = material.chance if curves and curves[0].scored == Labels.scored else None
    results = of_curves(curves, curve_totals, material.layout, chance, over)
    if numbers := numbers_at_step(curves):
        results["masking_curves"] = results["masking_curves"]._replace(
            metrics=numbers, outcomes=_outcomes(material, curves)
        )
    if material.masking is not None and material.masking.join is not None:
        results |= of_masked_heads(heads, material.masking.join)
    if material.first:
        for line in verdicts_on_curves(curve_totals, heads, curves, chance):
            log.info("%s", line)
    return results


def _outcomes(material: Material, curves: Sequence[Curve]) -> dict[str, Outcomes]:
    """Return the right test images of each masked network, the one that answers for the run first.

    Nothing for means over random repeats, for images without labels, and for images that chose the
    heads.
    """
    main = answering(curves)
    first = main.name if main is not None else ""
    found = {
        curve.name: Outcomes(curve.traces[0].right[0], material.data.images_of("test"))
        for curve in sorted(curves, key=lambda curve: curve.name != first)
        if curve.split == "test"
        and not curve.averaged
        and not curve.optimistic
        and curve.scored == Labels.scored
        and curve.traces[0].right is not None
    }
    return {} if material.data.unlabelled else found
