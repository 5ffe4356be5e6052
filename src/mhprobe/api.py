"""The notebook's way in: any timm model of a supported family, any loader of (images, labels), no Lightning.

model = timm.create_model("deit_small_patch16_224", pretrained=True).eval()
gates = mhprobe.attach(model)
found = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])
found["gate_importance"]            # (A,) tensor, larger means more important; shows itself as a table
found["gate_importance"].columns    # with its intervals; .to_frame() for pandas
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe import measures as all_measures
from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import progress
from mhprobe.masking.curve import CurveSpec, order_named
from mhprobe.masking.curve import masking_curve as trace_curve
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.recording.measuring import measure as watch
from mhprobe.report.tables import curve_rows
from mhprobe.report.values import Found, Values
from mhprobe.scoring.evaluate import evaluator
from mhprobe.surgery.costs import costs, head_shares

_LISTS = (tuple, list)
NO_IMAGES = "loader: it gave no images, expected at least one; was it a generator that is used up?"


def measure(
    model: nn.Module,
    loader: Iterable[Any],
    measures: Sequence[Measure | Callable[[HeadLayout], Measure]],
    show_progress: bool = False,
    select_loader: Iterable[Any] | None = None,
) -> Found:
    """Each measure's value on the images of ``loader``, by the measure's name, on the CPU.

    A value is a tensor, larger meaning what the measure's docstring says; it has its other columns (intervals, nulls)
    in ``.columns``, and ``.to_frame()``. A measure that refuses is left out with a warning (alone: with its error).

    model: a timm model; gates are attached if it has none. Weights and mode are left as they were.
    loader: yields (images, labels) or Batch; images as the model wants them, normalised float.
    measures: instances, or things that make one from a layout (a class, a functools.partial).
    select_loader: the images that measures choose on which have to choose something first (e.g. Interaction its pairs);
        without it they choose on the images of ``loader``, which flatters.

    One forward pass, and one backward pass if a measure asks for slopes, per batch for all measures together.
    Raises UserError for what is no measure, two of one name, batches of another form, or no image at all.
    """
    layout = attach(model).layout
    device = next(model.parameters()).device
    built = [_built(item, layout) for item in _listed(measures)]
    names = [item.name for item in built]
    if len(set(names)) < len(names):
        raise UserError(f"measure: every measure needs a name of its own, got {names}; call measure() once for each.")
    named = dict(zip(names, built, strict=True))
    choosing = [name for name, item in named.items() if item.select_needs is not None]
    if choosing and select_loader is None and iter(loader) is loader:
        raise UserError(
            f"measure: {', '.join(choosing)} first has to choose, so the loader is walked twice, got an iterator; "
            f"give a DataLoader, a list, or a select_loader."
        )
    selection = loader if select_loader is None else select_loader
    walked = [selection, loader] if choosing else [loader]
    total = sum(len(each) for each in walked if isinstance(each, Sized))
    images = 0
    with progress("measuring", total, "batches", show_progress) as done:

        def count(batch: Batch) -> None:
            nonlocal images
            images += int(batch.valid.sum())
            done(1)

        found, refused = watch(
            model, named, lambda: _batches(loader, device), lambda: _batches(selection, device), done=count
        )
    if not images:
        raise UserError(NO_IMAGES)
    for name, error in refused.items():
        if not found:
            raise error
        warnings.warn(f"{error} ({name} is left out, the others were measured)", MeasureWarning, stacklevel=2)
    return Found(
        {n: Values.of(n, named[n].label, named[n].kind, layout, columns) for n, columns in found.items()}, refused
    )


def masking_curve(
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
    **order_options: Any,
) -> list[dict[str, Any]]:
    """Accuracy as heads are masked one unit after the other: a row per point, as in tables/masking_curves.csv.

    Its columns: see ``mhprobe.report.tables.curve_rows``.

    model: a timm model; gates are attached if it has none.
    loader: the images the curve is reported on: (images, labels), images normalised as the model wants them.
    units: index (the same head of every layer), layer, head or stage.
    order: keep_best or another file of masking/ that holds an order, with its options as keywords.
    select_loader: the images an order is chosen on. Without it the order is chosen on the images it is reported on: the
        curve lies too high, and nothing is tested (p is empty).
    steps: how many units are masked at most; None for all of them.
    exclude_layers: layers whose heads are never masked. min_heads_per_layer: of every layer so many heads stay.
    rescale: multiply the heads that a layer keeps by H / kept.
    target: where to stop: {"heads": at most so many left} | {"flops": share of the dense model's} | {"latency": share
        of its time on a batch of the loader}.

    The loaders are walked once per step or more, so they must be walkable again (a DataLoader, a list; not a generator)
    and give the same images in the same order each time (no shuffling).
    Raises UserError for an iterator, a loader that shuffles, a loader without images, an unknown order, unit or target.

    >>> import timm
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3, num_classes=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    >>> images = torch.randn(8, 3, 16, 16)
    >>> loader = [(images, model(images).argmax(1))]  # labels that the whole model always hits
    >>> rows = masking_curve(model, loader, units="layer")
    >>> [row["heads_masked"] for row in rows], rows[0]["accuracy"]
    ([0, 3, 6], 1.0)
    """
    layout = attach(model).layout
    report = _walker(model, loader, rescale)
    select = report if select_loader is None else _walker(model, select_loader, rescale)
    spec = CurveSpec(
        name=f"{units}_{order}",
        units=units,
        order=order_named(order, **order_options),
        exclude_layers=exclude_layers,
        min_heads_per_layer=min_heads_per_layer,
        rescale=rescale,
        target=target,
    )
    images = next(_batches(loader, next(model.parameters()).device)).images
    left = costs(head_shares(model, layout, images, set(target or ())))
    splits = ("test", "test") if select_loader is None else ("validation", "test")
    return curve_rows(trace_curve(layout, spec, select, report, splits=splits, steps=steps, costs=left))


def load(path: str | Path, name: str | None = None, **settings: Any) -> nn.Module:
    """The timm model in a .safetensors + .json pair or a training checkpoint of ours, in eval mode.

    path: the file, the folder of a run (its pruned model, where it has one), or ``hf-hub:owner/name[@revision]``.
    name: of timm's, for weights of another training (.safetensors, .pth, .ckpt with a state dict under any usual key
        and prefix): they are put into that model. settings: its sizes, as for ``timm.create_model``; the number of
        classes is the file's.

    Raises UserError if a file is missing, damaged, holds code, or is not what its JSON or ``name`` says.
    """
    from mhprobe.weights.checkpoint import load_weights
    from mhprobe.weights.foreign import model_from
    from mhprobe.weights.hub import found

    if name is not None:
        return model_from(path, name, **settings)
    if settings:
        raise UserError(f"load: {', '.join(settings)}: settings go with the name of a model of timm's; give name=.")
    return load_weights(found(path))[0]


def _walker(model: nn.Module, loader: Iterable[Any], rescale: bool) -> Any:
    if iter(loader) is loader:
        raise UserError("masking_curve: the loader is walked many times, got an iterator; give a DataLoader or a list.")
    device = next(model.parameters()).device
    seen = [batch.labels[batch.valid] for batch in _batches(loader, torch.device("cpu"))]
    if not any(map(len, seen)):
        raise UserError(NO_IMAGES)
    labels = torch.cat(seen).to(device)

    def again() -> Iterator[Batch]:
        done = 0
        for batch in _batches(loader, device):
            these = batch.labels[batch.valid]
            done += len(these)
            # masks are compared image by image, over several walks: another image would count as a mask's doing
            if not torch.equal(these, labels[done - len(these) : done]):
                raise UserError(
                    "masking_curve: the loader gave its images in another order than before, expected the same in "
                    "every walk; give one with shuffle=False."
                )
            yield batch

    return evaluator(model, again, len(labels), rescale=rescale)


def _listed(measures: Any) -> Sequence[Any]:
    if isinstance(measures, str) or not isinstance(measures, Iterable):
        raise UserError(
            f"measure: measures is a list, e.g. [mhprobe.measures.GateImportance], got {_called(measures)} alone; "
            f"put it in brackets."
        )
    return list(measures)


def _built(item: Any, layout: HeadLayout) -> Measure:
    """A measure from what stands in the list. UserError for anything else."""
    makes = callable(item) and not isinstance(item, nn.Module) and (_is_measure(item) or not isinstance(item, type))
    made = item(layout) if makes else item
    if not isinstance(made, Measure):
        known = [name for name in dir(all_measures) if isinstance(item, str) and name.lower() == item.replace("_", "")]
        example = known[0] if known else "GateImportance"
        raise UserError(
            f"measure: {_called(item)} is no measure; expected a class or an instance of one, e.g. "
            f"mhprobe.measures.{example}."
        )
    return made


def _is_measure(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, Measure)


def _called(item: Any) -> str:
    return repr(item) if isinstance(item, str | int | float | None) else getattr(item, "__name__", type(item).__name__)


def _batches(loader: Iterable[Any], device: torch.device) -> Iterator[Batch]:
    """Batches with an index of their own, from whatever the loader yields."""
    first = 0
    for item in loader:
        batch = _batch(item, first)
        first += int(batch.valid.sum())
        yield Batch._make(part if part is None else part.to(device) for part in batch)


def _batch(item: Any, first: int) -> Batch:
    """first: the index of its first image. UserError for what is no batch."""
    if not isinstance(item, Batch):
        if not isinstance(item, tuple | list) or len(item) != 2 or not all(isinstance(part, Tensor) for part in item):
            keys = f" with {', '.join(map(repr, item))}" if isinstance(item, dict) else ""
            things = f" of {len(item)}: {', '.join(_called(part) for part in item)}" if type(item) in _LISTS else ""
            raise UserError(
                f"loader: expected batches (images, labels) of two tensors, or Batch, got a {type(item).__name__}"
                f"{keys}{things}. Give it as a list of pairs, e.g. [(batch[...], batch[...]) for batch in loader]."
            )
        images, labels = item
        item = Batch(images, labels, torch.arange(len(images)), torch.ones(len(images), dtype=torch.bool))
    index = first + torch.cumsum(item.valid.cpu(), 0) - 1
    return item._replace(index=index.clamp(min=0), targets=None)
