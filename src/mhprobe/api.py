"""Functions for notebooks: measure heads, draw masking curves, load weights, read photos; no Lightning needed.

model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
gates = mhprobe.attach(model)
values = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])
values["gate_importance"]           # (A,) tensor, larger means more important; shows itself as a table
values["gate_importance"].columns   # with its intervals; .to_frame() for pandas
"""

import contextlib
import functools
import inspect
import itertools
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhprobe import measures as all_measures
from mhprobe.backbones import (
    attach,
    backbone_of,
    input_spec,
    puts_out_features,
    readings_of,
    refuse_no_model,
)
from mhprobe.data.batch import Batch, Split, images_and_labels
from mhprobe.data.photos import PhotoLoader
from mhprobe.errors import UserError, one_of, quoted, refuse_misfits, whole_number
from mhprobe.heads import FillName, HeadLayout
from mhprobe.io.progress import progress
from mhprobe.io.readings import Reading
from mhprobe.masking.base import SHARES
from mhprobe.masking.parts.curve import CurveSpec, order_named
from mhprobe.masking.parts.curve import curve_on_splits as trace_curve
from mhprobe.masking.parts.trace import Curve
from mhprobe.measures.base import Measure, MeasureWarning, fitted
from mhprobe.measures.parts.hashing import image_numbers
from mhprobe.recording.checks import check_batch, refuse_no_forward, refuse_unusable, say_scale
from mhprobe.recording.fills import find_fill
from mhprobe.recording.measuring import feed, fills_of, finished, label_of
from mhprobe.recording.outputs import Of, Output, taking
from mhprobe.recording.record import refuse_replaced
from mhprobe.report.tables import curve_rows
from mhprobe.report.values import Found, Values
from mhprobe.scoring.base import Score, looked, score_for
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from mhprobe.surgery.costs import costs
from mhprobe.weights.normalisation import seen_by

log = logging.getLogger(__name__)

NO_IMAGES = (
    "loader: expected at least one image, got none. A generator can be read only once: give a list."
)


def measure(  # noqa: PLR0913 -- a notebook's door: each argument is a keyword of its own
    model: nn.Module,
    loader: Iterable[Any],
    measures: Sequence[Measure | Callable[[HeadLayout], Measure]],
    show_progress: bool = False,
    select_loader: Iterable[Any] | None = None,
    target: Of | None = None,
    batch: Split = images_and_labels,
    output: Output = None,
    label: str | None = None,
) -> Found:
    """Run ``measures`` on the images of ``loader``; return their values by name, on the CPU.

    A value is a tensor; the measure's docstring says what larger means. ``.columns`` has its other
    columns, as intervals. A measure that does not fit the model is left out with a warning; if none
    fits, its error is raised.

    model: a timm model; gates are attached if it has none. Its weights and mode do not change.
    loader: yields (images, labels, ...), images alone, dicts of them, or Batch. Images are float,
        normalised as the model expects. Without labels, measures that need them are left out.
    measures: measures, or functions that make one from a layout (a class, a functools.partial).
    select_loader: images for measures that first choose something (Interaction chooses pairs).
        Without it they choose on the images of ``loader``, and their values look too good.
    target: the scalar to differentiate: the "loss", the "top1" logit, the "label"'s logit, or the
        "norm" of the features. Default: the loss if there are labels, else top1; norm for a model
        without a classifier.
    batch: turns an item of the loader into (images, labels or None), for loaders of another form.
    output: index or key of the logits, of a model that gives back several tensors, e.g. 1 or
        "logits". Default: the one that has as many columns as the classifier, or the only (B, C);
        the log names it.
    label: the key of the labels in dicts; None takes a common name, as "label" or "labels".

    All measures share one forward pass per batch, and one backward pass if a measure needs slopes.
    Raises UserError for what is no measure or no loader, two of one name, batches of another form,
    no image, and outputs of which several could be the logits.
    """
    refuse_no_model("measure", model)
    batch = _split("measure", batch, label)
    one_of("measure", "show_progress", show_progress, Literal[True, False])
    named = _named(measures, attach(model).layout)
    choosing = _choosing(named)
    twice = choosing if select_loader is None else ""
    _refuse_no_loader("measure", loader, select_loader, twice)
    selection = loader if select_loader is None else select_loader
    walked = [selection, loader] if choosing else [loader]
    device = next(model.parameters()).device
    begun: list[Iterator[Batch]] = []
    of = target
    if of is None:
        begun, of = _target(model, _batches(loader, device, batch, model))
    with progress(
        "measuring", sum(map(operator.length_hint, walked)), "batches", show_progress
    ) as done:

        def walk(over: Iterable[Any]) -> Callable[[], Iterator[Batch]]:
            started = begun if over is loader else []
            return lambda: started.pop() if started else _batches(over, device, batch)

        with taking(output):
            unfit = feed(
                model, named, walk(loader), walk(selection), done=lambda seen: done(1), of=of
            )
    if not any(item.images or name in unfit for name, item in named.items()):
        raise UserError(NO_IMAGES)
    columns, refused = finished(named, unfit, show=show_progress)
    for name, error in refused.items():
        if not columns:
            raise error
        warnings.warn(
            f"{error} ({name} is left out, the others were measured)", MeasureWarning, stacklevel=2
        )
    labels = {n: label_of(named[n], of) for n in columns}
    return Found(
        {n: Values.of(n, labels[n], named[n].kind, named[n].layout, columns[n]) for n in columns},
        refused,
        {**readings_of(model), **getattr(loader, "readings", {})},
    )


def masking_curve(  # noqa: PLR0913 -- a notebook's door: each argument is a keyword of its own
    model: nn.Module,
    loader: Iterable[Any],
    units: str = "index",
    order: str = "keep_best",
    select_loader: Iterable[Any] | None = None,
    steps: int | None = None,
    exclude_layers: Sequence[int] = (),
    min_heads_per_layer: int = 0,
    rescale: bool = False,
    target: Mapping[str, float] | None = None,
    score: str | type[Score] | None = None,
    batch: Split = images_and_labels,
    fill: FillName = "zero",
    output: Output = None,
    label: str | None = None,
    **order_options: Any,
) -> "CurveRows":
    """Mask heads unit by unit and return the accuracy: a row per point (``mhprobe.report.tables.curve_rows``).

    model: a timm model; gates are attached if it has none.
    loader: test images, on which the curve is reported: (images, labels), normalised as the model
        expects. Every step reads it: a DataLoader or a list, not a generator, without shuffling or
        random augmentation.
    units: index (the same head of every layer), layer, head or stage.
    order: keep_best or another order of masking/; its options are keywords.
    select_loader: images that choose the order, read as ``loader``. Without it, or if it has the
        same images, those of ``loader`` choose: then the curve lies too high, and nothing is tested
        (p is empty).
    steps: largest number of units to mask; None for all.
    exclude_layers: layers whose heads are never masked. min_heads_per_layer: number of heads that
    every layer keeps.
    rescale: multiply the kept heads of a layer by H / kept.
    target: where to stop: {"heads": number left} | {"flops", "params" or "memory": share of the
        dense model's} | {"latency": share of its time on a batch of the loader}.
    score: meaning of "accuracy" and "loss": the "labels", or agreement with the unmasked model:
        "top1", "kl", "cosine", "difference", "knn" (mhprobe.scoring), or a class. Default: labels
        if all images have them, else top1; cosine for features.
    batch, label: as for ``measure``. fill: replacement of a masked head's output, found on the images that
        choose (``mhprobe.recording.fills``). output: as for ``measure``.
    Raises UserError for an iterator, a loader that shuffles or augments, a loader without images,
    an unknown order, unit or target, a hook that replaces what heads give, and for an argument of
    another type.

    >>> import timm
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3, num_classes=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    >>> images = torch.randn(8, 3, 16, 16)
    >>> loader = [(images, model(images).argmax(1))]  # labels that the whole model always hits
    >>> rows = masking_curve(model, loader, units="layer")
    >>> [row["heads_masked"] for row in rows], rows[0]["accuracy"]
    ([0, 3, 6], 1.0)
    """
    refuse_no_model("masking_curve", model)
    refuse_no_forward("masking_curve", model)
    refuse_unusable("masking_curve", model)
    batch = _split("masking_curve", batch, label)
    _refuse_no_loader("masking_curve", loader, select_loader, "every mask is tried on it")
    whole_number("masking_curve: steps", steps, none="all units")
    limits = {
        "exclude_layers": exclude_layers,
        "min_heads_per_layer": min_heads_per_layer,
        "target": target,
    }
    spec = _spec(order, order_options, units=units, rescale=rescale, fill=fill, **limits)
    layout = attach(model).layout
    walks = _unlike(
        [
            _walked(model, batches, batch)
            for batches in (loader, select_loader)
            if batches is not None
        ]
    )
    with taking(output):
        score_on = _evaluators(model, walks, score, fill, rescale)
    first = next(walks[0][0]()).images
    refuse_replaced(model, first)
    left = costs(model, layout, first, target or ())
    splits = ("test", "test") if len(walks) == 1 else ("validation", "test")
    with taking(output):
        curves = trace_curve(
            layout, spec, score_on[-1], score_on[0], splits=splits, steps=steps, costs=left
        )
    readings = {**readings_of(model), **getattr(loader, "readings", {})}
    return CurveRows(curve_rows(curves), curves, layout, readings)


def _split(where: str, batch: Split, label: str | None) -> Split:
    """The function that splits an item, with the key of its labels.

    Raises UserError for a key that is no text, or beside a function of the user's own.
    """
    if not callable(batch):
        raise UserError(
            f"{where}: batch: expected a function that gives (images, labels or None) of an item, "
            f"got {quoted(batch)}."
        )
    if label is None:
        return batch
    if not isinstance(label, str):
        raise UserError(f"{where}: label: expected the key of the labels, got {quoted(label)}.")
    if batch is not images_and_labels:
        raise UserError(
            f"{where}: label: batch= already says where the labels are; give one of the two."
        )
    return functools.partial(images_and_labels, label=label)


def _spec(order: Any, order_options: Mapping[str, Any], **settings: Any) -> CurveSpec:
    """The description of one curve; UserError for an argument of another type than ``masking_curve`` says."""
    if isinstance(layers := settings["exclude_layers"], Iterable) and not isinstance(layers, str):
        settings["exclude_layers"] = list(layers)
    refuse_misfits(masking_curve, {**settings, "order": order}, "masking_curve")
    try:
        chosen = order_named(order, **order_options)
    except (
        TypeError
    ) as error:  # an option that the order has not, or of another type than it can compare
        raise UserError(f"masking_curve: order={order}: {error}.") from error
    return CurveSpec(f"{settings['units']}_{order}", order=chosen, **settings)


def load(
    path: str | Path,
    name: str | None = None,
    *,
    flops: float | None = None,
    params: float | None = None,
    prefix: str | None = None,
    leave_out: bool | str | Sequence[str] = False,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    **settings: Any,
) -> nn.Module:
    """Load a timm model, in eval mode, from a .safetensors + .json pair or a checkpoint of mhprobe.

    path: the file, the folder of a run (the pruned model if there is one), or
    ``hf-hub:owner/name[@revision]``.
    name: a timm name, for weights trained elsewhere (.safetensors, .pth, .ckpt with a state dict
        under any usual key and prefix). settings: sizes of that model, as for
        ``timm.create_model``; the file gives the number of classes.
    prefix: which network of a foreign file: the beginning of its names, or the key it is under
    ("student"); None takes the one most like the model, and one line says so if there are several.
    leave_out: beginnings of names of a foreign file to leave out (a decoder, a projector), or True for
    all that the model has not.
    mean, std: of the pixels in [0, 1] that the network was trained on, per channel or one for all.
    None takes those of the JSON, or of timm's tag; of a foreign file that is a guess, and one line says so.
    flops, params: share of FLOPs or parameters to keep, for an elastic file
        (``prune.elastic=true``) or its folder. The result is the network that ``prune`` makes at
        this budget; its ``promise`` is the budget's guarantee, or None.
    Raises UserError if a file is missing, damaged, holds code, or is not what its JSON or ``name``
    says, and for options that the file has no use for.
    """
    from mhprobe.pruning.elastic import at_budget
    from mhprobe.weights.checkpoint import load_weights
    from mhprobe.weights.foreign import model_from
    from mhprobe.weights.hub import ELASTIC, NAMES, find_weights
    from mhprobe.weights.normalisation import normalise_by, tell

    if not isinstance(path, str | Path) or len(str(path)) > 4096 or "\0" in str(path):
        raise UserError(
            f"load: path: expected a file, a folder or hf-hub:owner/name, got {quoted(path)}."
        )
    given = {"name": name, "flops": flops, "params": params, "prefix": prefix}
    refuse_misfits(load, {**given, "leave_out": leave_out}, "load")
    target = {
        key: share for key, share in (("flops", flops), ("params", params)) if share is not None
    }
    if len(target) > (name is None):
        raise UserError(
            "load: flops, params: expected one of them, of an elastic file and without name=."
        )
    if name is not None:
        _refuse_other_weights(settings)
        model = model_from(path, name, prefix, leave_out, **settings)
        normalise_by(model, mean, std, "load")
        colours = {"mean": mean, "std": std}
        tell(model, name, [key for key, value in colours.items() if value is not None], "load")
        return model
    if unread := [
        key for key, on in (("prefix", prefix is not None), ("leave_out", leave_out)) if on
    ]:
        raise UserError(
            f"load: {', '.join(unread)}: is for weights trained elsewhere, which need a timm name; "
            "give name=."
        )
    if budgets := sorted({*settings} & {*SHARES}):
        raise UserError(
            f"load: {', '.join(budgets)}: the budget of an elastic file is one of flops and params."
        )
    if settings:
        raise UserError(
            f"load: {', '.join(settings)}: options of a timm model need its name; give name=."
        )
    model, description = load_weights(find_weights(path, ELASTIC if target else NAMES))
    model = at_budget(model, description, target) if target else model
    normalise_by(model, mean, std, "load")
    return model


def _refuse_other_weights(settings: Mapping[str, Any]) -> None:
    """Raise UserError for an option that takes weights from elsewhere than the file."""
    for key in ("pretrained", "checkpoint_path"):
        if settings.get(key):
            raise UserError(
                f"load: {key}: the weights are those of the file; leave it out. Without a file: "
                f"timm.create_model(name, {key}=...)."
            )


def photos(
    folder: str | Path,
    model: nn.Module,
    batch_size: int = 32,
    limit: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    levels: float | Sequence[float] | None = None,
) -> PhotoLoader:
    """Make a loader of the photos in a folder, with the size, mean and deviation that ``model`` expects.

    The loader can be read repeatedly. It gives (B, C, height, width) batches in the order of
    ``loader.files``, of as many channels as the model takes. ``loader.readings`` says how files were
    interpreted, and where mean and deviation are from.

    folder: a folder, .tar or .zip with images at any depth, or with .npy arrays (height, width, C)
    for a model of other than 1 or 3 channels; those that cannot be read are left out, with a
    warning. model: a model of a supported family.
    limit: largest number of images, taken evenly from all.
    mean, std: of the pixels in [0, 1] that the model was trained on, per channel or one for all.
    None takes the model's own; of a transformers model those of its processor; if there is none, a
    guess, and one line says so.
    levels: the value of a white pixel, e.g. 4095, or of a black and a white one. None takes 8 bits as
    they are, and of more the fewest that hold the largest value, and one line says so.
    Raises UserError for a folder without images, and for a model that does not state its input
    size.
    """
    given = {"folder": folder, "batch_size": batch_size, "limit": limit}
    refuse_misfits(photos, given, "photos")
    refuse_no_model("photos", model)
    backbone = backbone_of(model)
    spec, reading = seen_by(backbone, mean, std, "photos")
    loader = PhotoLoader(folder, **spec, batch_size=batch_size, limit=limit, levels=levels)
    loader.tell(reading)
    return loader


def _refuse_no_loader(where: str, loader: Any, select_loader: Any, twice: str) -> None:
    """UserError for what cannot be walked.

    twice: the reason why it is walked more than once; "" if it is not.
    """
    for name, value in (
        ("loader", loader),
        ("select_loader", [] if select_loader is None else select_loader),
    ):
        if isinstance(value, str | Tensor | Mapping) or not isinstance(value, Iterable):
            raise UserError(
                f"{where}: {name}: expected a DataLoader or a list of batches, got {quoted(value)}."
            )
        if twice and iter(value) is value:
            raise UserError(
                f"{where}: {name}: {twice}, expected a DataLoader or a list, got an iterator, read "
                "once."
            )


_Walked = tuple[
    Callable[[], Iterator[Batch]], Tensor
]  # a loader: a function that walks it, and its ``_marks``


def _walked(model: nn.Module, loader: Iterable[Any], split: Split) -> _Walked:
    """Walk a loader once.

    UserError for no image, and for labels that only some of its batches have.
    """
    device, layout = next(model.parameters()).device, attach(model).layout
    parts = []
    for batch in _batches(loader, device, split, model):
        check_batch(model, batch.images, batch.labels, layout)
        parts.append(_marks(batch))
    if not any(map(len, parts)):
        raise UserError(NO_IMAGES)
    if len({part.shape[1] for part in parts}) > 1:
        raise UserError(
            "masking_curve: loader: expected labels in all batches or in none, got some of both. "
            "Give all of them, or "
            "leave them out: batch=lambda item: (images of the item, None)."
        )
    marks = torch.cat(parts)
    labels = marks[:, 1] if marks.shape[1] == 2 else torch.zeros_like(marks[:, 0])

    def again() -> Iterator[Batch]:
        for batch, part in itertools.zip_longest(_batches(loader, device, split), parts):
            # masks are compared image by image, over several walks
            if batch is None or part is None or not torch.equal(_marks(batch), part):
                raise UserError(
                    "masking_curve: loader: expected the same images and labels in the same order "
                    "in every pass, batch "
                    "by batch, got others. Use shuffle=False and no random augmentation."
                )
            yield batch._replace(labels=labels[batch.index])

    return again, marks


def _unlike(walks: list[_Walked]) -> list[_Walked]:
    """Leave out the second loader if it has the images of the first; MeasureWarning if it has some of them."""
    images = [marks[:, 0].unique() for _, marks in walks]
    shared = int(torch.isin(images[0], images[-1]).sum())
    if shared == len(images[0]) == len(images[-1]):
        return walks[:1]
    if shared:
        which = f"{shared} of the {len(images[0])} images of loader are in select_loader, too"
        warnings.warn(
            f"masking_curve: {which}: on these the curve lies too high.",
            MeasureWarning,
            stacklevel=3,
        )
    return walks


def _evaluators(
    model: nn.Module,
    walks: Sequence[_Walked],
    choice: str | type[Score] | None,
    fill: FillName,
    rescale: bool,
) -> list[Evaluator]:
    """Make the evaluate function of each loader, all of one score, with the fill that the last one finds."""
    features, labelled = puts_out_features(model), all(marks.shape[1] == 2 for _, marks in walks)
    kind = score_for(
        choice, "masking_curve: score", labelled, features, min(len(marks) for _, marks in walks)
    )
    slopes_of: Of = "norm" if features else "loss"
    walk = walks[-1][0]
    # zeros stand in the place of labels that are not there, and no fill may be fitted to them
    none: Any = None
    unlabelled = walk if labelled else lambda: (b._replace(labels=none) for b in walk())
    masked = MaskedAs(find_fill(model, fill, unlabelled), rescale)
    evaluators = []
    for again, marks in walks:
        judge = looked(kind, model, again, len(marks), of=slopes_of)
        evaluators.append(Evaluator(model, again, len(marks), masked=masked, score=judge))
    return evaluators


def _marks(batch: Batch) -> Tensor:
    """(n, 2) int64 for the valid images: a digest of the pixels, and the label; (n, 1) without labels."""
    columns = (image_numbers(batch.images), batch.labels)
    return torch.stack([column[batch.valid].long() for column in columns if column is not None], 1)


def _target(model: nn.Module, batches: Iterator[Batch]) -> tuple[list[Iterator[Batch]], Of]:
    """Choose the scalar to differentiate: "loss" with labels, else "top1", or "norm" without a classifier.

    The first batch tells. The walk that has begun with it is returned, too: a stream gives each
    batch once.
    """
    first = list(itertools.islice(batches, 1))
    begun: list[Iterator[Batch]] = [itertools.chain(first, batches)]
    if first and first[0].labels is None:
        return begun, "norm" if puts_out_features(model) else "top1"
    return begun, "loss"


def _choosing(named: Mapping[str, Measure]) -> str:
    """Say which measures look at images twice, to choose and then to measure; "" if none does."""
    names = [
        name for name, item in named.items() if item.select_needs is not None or fills_of([item])
    ]
    return f"{', '.join(names)} chooses on it before it measures" if names else ""


def _named(measures: Any, layout: HeadLayout) -> dict[str, Measure]:
    """Return measures by name.

    Raises UserError for none, two of one name, and an item that is no measure.
    """
    if isinstance(measures, str) or not isinstance(measures, Iterable):
        raise UserError(
            "measure: measures: expected a list, e.g. [mhprobe.measures.GateImportance], got "
            f"{_called(measures)}; put "
            f"it in brackets."
        )
    built = [_built(item, layout) for item in measures]
    if not built:
        raise UserError(
            "measure: measures: expected at least one, e.g. [mhprobe.measures.GateImportance], got "
            "none."
        )
    names = [item.name for item in built]
    if len(set(names)) < len(names):
        raise UserError(
            f"measure: measures: expected one of each name, got {names}; call measure() once for "
            "each."
        )
    return dict(zip(names, built, strict=True))


def _built(item: Any, layout: HeadLayout) -> Measure:
    """Make a measure of an item of the list. Raises UserError if that is not possible."""
    whole = isinstance(item, type) and issubclass(item, Measure) and not inspect.isabstract(item)
    makes = whole or (callable(item) and not isinstance(item, type | nn.Module))
    measure = fitted(item, layout) if makes else item
    if not isinstance(measure, Measure):
        names = [
            name
            for name in dir(all_measures)
            if isinstance(item, str) and name.lower() == item.replace("_", "")
        ]
        example = names[0] if names else "GateImportance"
        raise UserError(
            f"measure: measures: {_called(item)} is no measure; expected measures or their "
            "classes, e.g. "
            f"mhprobe.measures.{example}."
        )
    return measure


def _called(item: Any) -> str:
    return (
        repr(item)
        if isinstance(item, str | int | float | None)
        else getattr(item, "__name__", type(item).__name__)
    )


def _batches(
    loader: Iterable[Any], device: torch.device, split: Split, model: nn.Module | None = None
) -> Iterator[Batch]:
    """Yield the non-empty batches of ``loader`` on ``device``, images numbered from 0.

    model: of which one line says if the first images look as if they were not normalised for it.
    UserError for other items.
    """
    first = 0
    for item in loader:
        if not isinstance(item, Batch):
            images, labels = _two_parts(split(item))
            if not isinstance(images, Tensor) or images.dim() < 2:
                got = tuple(images.shape) if isinstance(images, Tensor) else quoted(images)
                raise UserError(
                    f"loader: expected batches of images (B, 3, height, width), got {got}."
                )
            item = Batch.whole(images, labels)
        if not len(item.images):
            continue  # a filter may have removed every image
        if item.valid.dtype != torch.bool:  # 0 and 1 as numbers would name the first two images
            raise UserError(
                "loader: Batch.valid: expected bool, True for images that count, got "
                f"{item.valid.dtype}."
            )
        if model is not None and not first:
            _tell_scale(model, item.images)
        index = first + torch.cumsum(item.valid.cpu(), 0) - 1
        first += int(item.valid.sum())
        yield item._replace(index=index.clamp(min=0), targets=None).to(device)


def _two_parts(given: Any) -> tuple[Any, Any]:
    """Images and labels that ``batch=`` made of an item. Raises UserError for anything else."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    raise UserError(
        "batch: expected a function that gives (images, labels or None) of an item, got a "
        f"{type(given).__name__}{size} from it. Without labels: batch=lambda item: (item, None)."
    )


def _tell_scale(model: nn.Module, images: Tensor) -> None:
    """Log a line on images that look as if they were not normalised for the model."""
    with contextlib.suppress(UserError):  # a model that does not say what it expects
        if told := say_scale(images, input_spec(backbone_of(model))):
            log.warning("loader: images: %s.", told)


class CurveRows(list[dict[str, Any]]):
    """Rows of masking curves, with the curves themselves; ``mhprobe.plot.curve`` draws them.

    readings: how the network's file, its outputs and the images were interpreted.
    """

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        curves: Sequence[Curve],
        layout: HeadLayout,
        readings: Mapping[str, Reading] = MappingProxyType({}),
    ) -> None:
        super().__init__(rows)
        self.curves, self.layout, self.readings = curves, layout, dict(readings)

    @property
    def masks(self) -> list[Tensor | None]:
        """Masks for ``prune_heads``: per row (A,) bool, True for heads that are off; None for a mean over paths."""
        return [
            None if row["seed"] == "mean" else self.layout.mask([*map(int, row["masked"].split())])
            for row in self
        ]
