"""Comparisons of two networks for a notebook and for ``mhprobe diff``."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.differences.compare import (
    Ends,
    Measured,
    Null,
    ends_of,
    explained,
    judged,
    likeness,
    measured,
    outputs,
)
from mhprobe.differences.errors import Pairs, relative
from mhprobe.differences.exported import Onnx
from mhprobe.differences.result import (
    Diff,
    block_table,
    head_table,
    neuron_table,
    numbers,
    numbers_of_ends,
    outside,
    outside_ends,
    photograph_table,
    refuse_untold,
    tolerances,
)
from mhprobe.differences.sides import Side, Torch, paired, refuse_unlike
from mhprobe.differences.words import REFERENCE, Found, end, sentences
from mhprobe.errors import UserError, one_of, quoted, whole_number
from mhprobe.io.progress import progress
from mhprobe.io.written import counted
from mhprobe.pages.diffing.changes import (
    KINDS,
    Folds,
    Kinds,
    both_taken,
    changes,
    kinds_of,
    likeness_and_changes,
)
from mhprobe.pages.diffing.course import (
    Along,
    Course,
    course,
    files_along,
    refuse_other_checkpoints,
    said,
)
from mhprobe.pages.diffing.opened import (
    Given,
    Opened,
    Pictures,
    classes_of,
    export,
    exported,
    guessed_null,
    opened,
    pictures,
    refuse_unlike_pair,
    same_ends,
    same_order,
)
from mhprobe.pages.diffing.shown import page, page_of_ends
from mhprobe.pages.diffing.worth import SIZE, importance, refuse_no_ablation
from mhprobe.pages.diffing.worth import ablation as ablated
from mhprobe.pages.looking.network import Asked
from mhprobe.recording.outputs import Output, say_probabilities, taking
from mhprobe.report.tables import Table
from mhprobe.weights.normalisation import Numbers


def diff(  # noqa: PLR0913 -- a notebook's door: each argument is a keyword of its own
    a: Given,
    b: Given,
    images: str | Path | Tensor | Pictures,
    labels: Tensor | None = None,
    tolerance: Any = None,
    null: Given | Literal["auto", "rounding", "images"] = "auto",
    limit: int = 64,
    show_progress: bool = True,
    ablation: bool = False,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    levels: float | Sequence[float] | None = None,
    output: Output = None,
    measures: Sequence[str] | None = None,
    along: Along = None,
) -> Diff:
    """Compare two networks of one architecture, head by head, and test each difference against nothing.

    a, b: networks, or what ``look`` opens: a run, a file or folder of weights, hf-hub:owner/name, a
        timm name. b was made from a: tuned, pruned, quantised, in another precision; or it is an
        ONNX file of a.
    images: a folder or archive of photographs, of which at most ``limit`` are taken, evenly by
        name; or of .npy arrays (height, width, C) for networks of C channels; or (N, C, height,
        width) uint8, or floats that are normalised for both. At least four.
    labels: (N,) int64, for accuracy. tolerance: a share that own errors of heads and blocks, and
        with labels the loss of accuracy, may not exceed; or a dict of head, block, logits,
        agreement, accuracy.
    null: what nothing looks like: "rounding" (for copies and exports), "images" (for trainings), or
        a network, as another seed of a; "auto" looks at the weights.
    ablation: measure, too, how much each head is missed in both networks: the rise of the loss
        without it, of the labels, or of the classes that a gives. Larger: it is missed more. It
        takes a pass per head.
    mean, std: of the pixels in [0, 1] that both were trained on, per channel or one for all; None
        takes each network's own. levels: the value of white, or of black and white, in files of
        more than 8 bits; None finds it.
    output: index or key of the logits, of networks that give back several tensors.
    measures: names of measures of heads, as in ``mhprobe.measures``, to take in both networks in
        place of the usual five; also of copies, which are not measured without.
    along: checkpoints between the two, in their order, or a folder of them, for the course of each
        head over a training; None takes the epochs that b's run has kept, of trainings.

    The result shows itself as sentences; ``.heads``, ``.blocks`` and ``.neurons`` are tables,
    ``.metrics`` numbers, ``.save(folder)`` writes all. Raises UserError for two architectures, other
    classes or sizes, too few images, a tolerance of what is not there, and measures that these
    images or networks do not allow.
    """
    whole_number("diff: limit", limit, least=1)
    _refuse_null(null, b)
    task = Task(tolerances(tolerance), null, ablation, kinds_of(measures), along, show_progress)
    asked = Asked(mean, std)
    _refuse_normalised(images, asked)
    with taking(output):
        first = _opened(a, asked)
        other = None if exported(b) else _opened(b, asked)
        if other is not None:
            refuse_unlike_pair(first, other)  # before the images are blamed
        size, channels = first.spec["size"], len(first.spec["mean"])
        read = (
            images
            if isinstance(images, Pictures)
            else pictures(images, labels, size, limit, levels=levels, channels=channels)
        )
        second = other or export(str(b), first, read.batches(first.spec, first.spec))
        if other is None:
            refuse_unlike_pair(first, second)
        first, second = same_ends(first, second)
        second = same_order(first, second)
        if isinstance(second.side, Onnx) and second.side.hidden:
            return ends_alone(first, second.side, read, task)
        return compared(first, second, read, task)


def _refuse_normalised(images: Any, asked: Asked) -> None:
    """UserError for mean or std beside images that are normalised already."""
    given = [key for key in ("mean", "std") if getattr(asked, key) is not None]
    if given and isinstance(images, Tensor) and images.is_floating_point():
        raise UserError(
            f"diff: {given[0]}: is of pixels, and these images are normalised floats. Leave it out, "
            "or give uint8 pixels or a folder."
        )


class Task(NamedTuple):
    """Options of a comparison.

    limits: tolerances. null: what nothing looks like, or "auto". kinds: measures that are asked
    for; None for the usual ones. along: as of ``diff``.
    """

    limits: dict[str, float]
    null: Given | str = "auto"
    ablation: bool = False
    kinds: Kinds | None = None
    along: Along = None
    show: bool = True


class Plan(NamedTuple):
    """Parts of a comparison, after all refusals.

    null: what nothing looks like, where ``other``, a network, does not say it. training: True if
    heads are measured before and after. files: of the checkpoints between. notes: on choices.
    """

    pairs: Pairs
    folds: Folds
    null: Null
    other: Opened | None
    training: bool
    files: list[Path]
    notes: list[str]


def _refuse_options(a: Opened, b: Side, read: Pictures, task: Task) -> None:
    """Raise UserError for options that these networks, or these images, do not allow."""
    classes = classes_of(a.side)
    refuse_untold(task.limits, read.labels is not None, classes)
    _refuse_other_classes(a, read)
    refuse_no_ablation(task.ablation, b, classes)


def _refuse_null(null: Any, b: Any) -> None:
    """Raise UserError for an unknown word, and for networks and trainings where b is an export."""
    if isinstance(null, str) and not Path(null).expanduser().exists():
        one_of("diff", "null", null, Literal["auto", "rounding", "images"])
    if exported(b) and null not in ("auto", "rounding"):
        given = quoted(str(null)) if isinstance(null, str | Path) else "a network"
        raise UserError(
            f"diff: null: {Path(str(b)).name} is an export, held against what a correct one differs "
            f"by: rounding. Got {given}, which is for trainings; leave it out."
        )


def _opened(given: Any, asked: Asked) -> Opened:
    return given if isinstance(given, Opened) else opened(given, asked=asked)


def _planned(a: Opened, b: Opened, read: Pictures, task: Task) -> Plan:
    """Choose what is compared. Raises UserError for what cannot be."""
    ours, theirs, classes = _torch(a), b.side, classes_of(a.side)
    _refuse_options(a, theirs, read, task)
    refuse_unlike(ours, theirs)
    pairs = Pairs(paired(ours, theirs, "head"), _neurons(ours, theirs))
    batches = read.batches(a.spec, b.spec)
    folds = Folds(batches, read.labels, len(read.pixels), task.kinds or KINDS, task.show)
    null, why = guessed_null(ours, theirs)
    notes = [*ours.notes, *theirs.notes, *a.notes, *b.notes, *read.notes]
    other = None
    if task.null == "auto":
        notes.append(f"{why} (--null chooses.)")
    elif task.null in ("rounding", "images"):
        null = task.null  # type: ignore[assignment]
    else:
        other = _same_kind(a, opened(task.null))
    notes += _on_missing_labels(task, read, classes)
    training = other is not None or null == "images"
    files = _files(task, a, b, training, notes)
    if task.kinds is not None:
        folds.refuse_unfit(ours, 0)
        folds.refuse_unfit(_measurable(theirs, "measures"), 1)
    asked = task.kinds is not None or bool(files)
    return Plan(pairs, folds, null, other, training or asked, files, notes)


def _same_kind(a: Opened, other: Opened) -> Opened:
    """The network that says what nothing looks like, fit for A. UserError for other blocks or images."""
    refuse_unlike_pair(a, other)
    return same_order(a, same_ends(a, other)[1])


def _on_missing_labels(task: Task, read: Pictures, classes: int) -> list[str]:
    """Return a note where a tolerance of everything says nothing of accuracy, for want of labels."""
    if "all" in task.limits and read.labels is None and classes:
        return ["The photographs have no labels, so accuracy is not held to the tolerance."]
    return []


def _on_probabilities(a: Opened, b: Opened | Onnx, ends: Ends) -> list[str]:
    """Return a note where only one of two networks gives probabilities, as an export behind a softmax."""
    names = [(one.side if isinstance(one, Opened) else one).name for one in (a, b)]
    like = [ends.classes and bool(say_probabilities(of)) for of in (ends.ours, ends.theirs)]
    if like[0] == like[1]:
        return []
    if like[0]:
        names.reverse()
    return [
        f"{names[1]} gives probabilities, and {names[0]} logits (a guess): their error says nothing. "
        "Give both with a softmax, or both without."
    ]


def _files(task: Task, a: Opened, b: Opened, training: bool, notes: list[str]) -> list[Path]:
    """Return the checkpoints between two networks, and note if some are left out. UserError for others."""
    if task.along is None and not training:
        return []
    files = files_along(task.along, b.epochs)
    if files:
        _measurable(b.side, "along")
    refuse_other_checkpoints(files, a, b)
    if task.along is None and len(files) < len(b.epochs):
        notes.append(
            f"{len(files)} of the {len(b.epochs)} epochs that {b.side.name} has kept are measured, "
            "evenly (--along names others)."
        )
    return files


def _measurable(side: Side, option: str) -> Torch:
    """The network of a side whose heads can be measured. UserError for an export."""
    if not isinstance(side, Torch):
        raise UserError(
            f"diff: {option}: {side.name} is an export, whose heads cannot be measured. Give two "
            f"networks of torch, or leave {option} out."
        )
    return side


def compared(a: Opened, b: Opened, read: Pictures, task: Task) -> Diff:
    """Compare two opened networks. UserError as of ``diff``."""
    ours, theirs, classes = _torch(a), b.side, classes_of(a.side)
    plan = _planned(a, b, read, task)
    pairs, batches = plan.pairs, plan.folds.batches
    other = plan.other and _torch(plan.other)
    with progress("comparing", len(read.pixels), "images", task.show) as done:
        found = measured(ours, theirs, pairs, batches, plan.null, b.dtype, other, done)
    limit = task.limits.get("block", task.limits.get("all"))
    verdict = judged(found, limit)
    ends = ends_of(found, classes)
    compared_answers = outputs(ends, found.labels)
    worst = [] if verdict.first is None else [verdict.first]
    parts = {number: explained(ours, theirs, pairs, batches, number, classes) for number in worst}
    reference = REFERENCE[found.null] if other is None else f"{other.name} differs from the first"
    about = Found(
        (ours.name, theirs.name),
        ours.layout.of("head"),
        pairs,
        found,
        verdict,
        compared_answers,
        parts,
        reference,
        limit,
    )
    values, over = _values(a, b, plan, found)
    if task.ablation:
        values |= ablated(ours, theirs, pairs, batches, found, task.show)
    told = [*likeness_and_changes(values, len(read.pixels), plan.folds.kinds), *said(over)]
    result = Diff(
        sentences=[*sentences(about), *told],
        heads=head_table(about, values),
        blocks=block_table(ours.layout, about),
        neurons=neuron_table(pairs, found),
        metrics=numbers(found, verdict, compared_answers),
        outside=outside(about, task.limits),
        notes=list(dict.fromkeys([*plan.notes, *_on_probabilities(a, b, ends)])),
        images=len(read.pixels),
        readings=[(of.side.name, of.readings) for of in (a, b) if of.readings],
        course=over.table(about.layout) if over else None,
        measures={name: kind.called for name, kind in plan.folds.kinds.items()},
        photographs=photograph_table(read.names, ends, read.labels),
    )
    shown = functools.partial(page, about, result, ours, theirs, read, batches)
    return result._replace(page=shown)


def ends_alone(a: Opened, b: Onnx, read: Pictures, task: Task) -> Diff:
    """Compare the logits of an export that hides its blocks. UserError for a tolerance of what is hidden, too."""
    ours, classes, limits = _torch(a), classes_of(a.side), task.limits
    _refuse_options(a, b, read, task)
    for option, asked in (("measures", task.kinds), ("along", task.along)):
        if asked:
            _measurable(b, option)
    for name in ("head", "block"):
        if name in limits:
            raise UserError(f"diff: tolerance: {name}: {b.notes[-1]}")
    batches = read.batches(a.spec, a.spec)
    answers: list[tuple[Tensor, Tensor]] = []
    with progress("comparing", len(read.pixels), "images", task.show) as done:
        for batch in batches(max(SIZE, b.most or 0)):
            answers.append((ours.logits(batch.ours).float(), b.logits(batch.theirs)))
            done(len(batch.ours))
    before, after = (torch.cat(side) for side in zip(*answers, strict=True))
    ends = Ends(before, after, relative(after[:, None], before[:, None]), classes)
    compared_answers = outputs(ends, read.labels)
    held = {"accuracy": limits.get("all"), **limits}
    empty = Table([], [])
    result = Diff(
        sentences=[end(compared_answers, len(before)), b.notes[-1]],
        heads=empty,
        blocks=empty,
        neurons=empty,
        metrics={"diff/images": len(before), **numbers_of_ends(compared_answers)},
        outside=outside_ends(compared_answers, held),
        notes=[*ours.notes, *a.notes, *read.notes, *_on_probabilities(a, b, ends)],
        images=len(before),
        readings=[(ours.name, a.readings)] if a.readings else [],
        photographs=photograph_table(read.names, ends, read.labels),
    )
    shown = functools.partial(page_of_ends, (ours.name, b.name), a.class_names, result, read)
    return result._replace(page=shown)


def _values(
    a: Opened, b: Opened, plan: Plan, found: Measured
) -> tuple[dict[str, Tensor], Course | None]:
    """Return what is measured of each head in both networks, as columns, and over the checkpoints between them."""
    ours, theirs, pairs, folds = _torch(a), b.side, plan.pairs, plan.folds
    values, over = dict(found.itself), None
    if plan.training and isinstance(theirs, Torch):
        both = both_taken(ours, theirs, pairs, folds)
        values |= changes(*both, folds)
        if plan.files:
            itself = found.itself or likeness(ours, theirs, pairs, folds.batches)
            over = course(plan.files, a, b, folds, both, itself)
    if "importance_before" not in values:
        values |= importance(ours, theirs, pairs, folds.batches, found.labels)
    return values, over


def _refuse_other_classes(of: Opened, read: Pictures) -> None:
    """UserError for folders of another number of classes than the network has logits."""
    count = getattr(getattr(of.side, "backbone", None), "num_classes", None)
    if read.classes is None or not classes_of(of.side) or not isinstance(count, int):
        return
    if count not in (0, read.classes):
        raise UserError(
            f"diff: --labelled: there are {counted(read.classes, 'folder')} of classes, but "
            f"{of.side.name} has {count} classes. Name all in the order of its logits with --classes "
            "FILE, one a line; folders may be some of them."
        )


def _neurons(a: Side, b: Side) -> list[Any]:
    """Pair MLPs where both sides know their neurons."""
    kinds = [{site.kind for site in side.layout.sites} for side in (a, b)]
    return paired(a, b, "neuron") if all("neuron" in of for of in kinds) else []


def _torch(of: Opened) -> Torch:
    assert isinstance(of.side, Torch)
    return of.side
