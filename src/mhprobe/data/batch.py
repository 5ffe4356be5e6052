"""Batch: what a loader yields and a model is trained and tested on; images and labels of what other loaders yield."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhprobe.data.labels import Form, are_class_numbers, form_of, may_be_classes
from mhprobe.errors import UserError, quoted, short

# in dicts of Hugging Face's datasets, and of WebDataset, which names parts by the endings of files
IMAGES = ("images", "image", "pixel_values", "img", "input_ids", "jpg", "jpeg", "png", "webp", "x")
OF_FILES = ("path", "file", "url")  # in keys of texts that say where an image is from
LABELS = ("labels", "label", "targets", "target", "cls", "y")
_COUNTING = 4  # images: fewer classes may follow each other by chance
Split = Callable[[Any], tuple[Tensor, Tensor | None]]


class Batch(NamedTuple):
    """One batch.

    images: (B, 3, height, width), uint8 as it leaves the loader, float32 and normalised after the
    transform.
    labels: (B,) int64; in a notebook None where nobody has any.
    index: (B,) int64, the image's position in its split.
    valid: (B,) bool, False for images that only even out the ranks: they never enter a sum.
    targets: (B, C) soft targets; other: (B,) int64 index of the image that was blended in; share:
        (B,) what is left of the image itself, up to 1. Only after mixup or cutmix.
    first: () int64, the index of the first image of the batch of all ranks; only where images are
    to be mixed.
    objects: (B, height, width) int64 what each pixel shows, 0 for background; only where the data
    set tells.
    """

    images: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index, which nobody calls on a batch
    valid: Tensor
    targets: Tensor | None = None
    objects: Tensor | None = None
    first: Tensor | None = None
    other: Tensor | None = None
    share: Tensor | None = None

    @classmethod
    def whole(
        cls, images: Tensor, labels: Tensor | None = None, objects: Tensor | None = None
    ) -> "Batch":
        """A batch that is all there is: images are numbered from 0, and all of them count."""
        index = torch.arange(len(images))
        return cls(images, labels, index, torch.ones(len(index), dtype=torch.bool), objects=objects)  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> "Batch":
        return Batch._make(part if part is None else part.to(device) for part in self)

    def part(self, these: slice | Tensor) -> "Batch":
        """Return some of its images: a slice of them, or those at these positions."""
        return Batch._make(part if part is None or not part.dim() else part[these] for part in self)

    @property
    def unlabelled(self) -> "Batch":
        return self._replace(labels=None)  # type: ignore[arg-type]  # as in a notebook


Walk = Callable[
    [], Iterable[Batch]
]  # starts a new walk over a split; of several processes each walks its share


def images_and_labels(item: Any, label: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the (B, ...) images and (B,) labels, None without, of an item of a loader.

    Images alone; (images, labels, ...), of which the rest is left aside; a dict with common names.
    In either, a list of one part per image is stacked. label: the dict's key of the labels; None
    looks for a common name.

    Raises UserError for anything else, for labels of another form, and for a dict that may have
    labels under another name.
    """
    if label is not None and not (isinstance(item, Mapping) and label in item):
        raise UserError(f"loader: label: expected dicts with {quoted(label)}, {_got(item)}.")
    if isinstance(item, Tensor):
        return item, None
    names = LABELS if label is None else (label,)
    images, labels = _candidates(item, names)
    stacked, numbers = _first_tensor(images), _first_tensor(labels)
    without = not labels or labels[0] is None
    if stacked is None or not (without or numbers is not None):
        raise UserError(_texts(item, names, labels) if stacked is not None else _unknown(item))
    if isinstance(item, Mapping):
        _refuse_several(item, stacked, names)
        if numbers is None:
            _refuse_other_keys(item, stacked)
    if numbers is not None:
        _refuse_no_numbers(numbers)
        _refuse_index(item, numbers)
    if numbers is not None and numbers.dim() != 1:
        raise UserError(_another_form(item, stacked, numbers, names))
    return stacked, numbers


def _refuse_no_numbers(labels: Tensor) -> None:
    """Raise UserError for labels on the meta device, and for sparse ones."""
    if labels.is_meta:
        raise UserError("loader: labels: they are on the meta device and hold no numbers.")
    if labels.layout is not torch.strided:
        raise UserError(
            f"loader: labels: expected (B,) int64, one class per image, got a sparse tensor of "
            f"{tuple(labels.shape)}. Give labels.to_dense(), of one-hot ones with .argmax(1)."
        )


def _refuse_index(item: Any, labels: Tensor) -> None:
    """Raise UserError for (images, numbers that count up, classes), as of a data set that gives its index, too."""
    if not isinstance(item, tuple | list) or len(item) < 3 or len(labels) < _COUNTING:
        return
    third = _stacked(item[2])
    if third is None or third.shape != labels.shape or labels.dim() != 1:
        return
    if _counts_up(labels) and are_class_numbers(third) and not _counts_up(third):
        raise UserError(
            f"loader: labels: the second part of an item counts up, {labels[:3].tolist()} ..., as an "
            "index does, and the third has whole numbers, too. Say which are the classes: "
            "batch=lambda item: (item[0], item[2]), or item[1]."
        )


def _counts_up(numbers: Tensor) -> bool:
    return are_class_numbers(numbers) and bool(
        (numbers[1:].long() - numbers[:-1].long() == 1).all()
    )


def _candidates(item: Any, names: Sequence[str]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return what may be the images of an item, and what may be its labels. names: a dict's keys of labels."""
    if isinstance(item, Mapping):
        images = [item[name] for name in IMAGES if name in item]
        return images, [item[name] for name in names if name in item]
    return (item[:1], item[1:2]) if isinstance(item, tuple | list) else ((), ())


def _first_tensor(parts: Sequence[Any]) -> Tensor | None:
    """Return the first of the parts that is a tensor or can be one; None if none is."""
    return next(filter(torch.is_tensor, map(_stacked, parts)), None)


def _refuse_several(item: Mapping[Any, Any], images: Tensor, labels: Sequence[str]) -> None:
    """Raise UserError for a dict in which two known keys hold other images, or other labels."""
    there = {key: _stacked(item[key]) for key in (*IMAGES, *labels) if key in item}
    seen = {
        key: of
        for key, of in there.items()
        if key in IMAGES and of is not None and of.dim() == images.dim()
    }
    numbers = {
        key: of
        for key, of in there.items()
        if key in labels and of is not None and of.shape[:1] == images.shape[:1]
    }
    for what, found in (("images", seen), ("labels", numbers)):
        first, others = next(iter(found), ""), [*found][1:]
        if other := next((key for key in others if not _alike(found[first], found[key])), None):
            todo = f"label={quoted(first)} or label={quoted(other)}"
            if what == "images":
                todo = f"batch=lambda item: (item[{quoted(other)}], item[...])"
            raise UserError(
                f"loader: {what}: expected one key with them, got {quoted(first)} and "
                f"{quoted(other)}, which differ. Say which: {todo}."
            )


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _refuse_other_keys(item: Mapping[Any, Any], images: Tensor) -> None:
    """Raise UserError for a dict without known labels in which other keys hold what may be a class per image."""
    others = {key: part for key, part in item.items() if key not in IMAGES + LABELS}
    unused, texts = [], []
    for key, part in others.items():
        stacked = _stacked(part)
        rows = stacked is not None and stacked.dim() == 2 and stacked.shape[1] > 1
        if rows and (images.dim() != 4 or "mask" in str(key)):  # of tokens
            continue
        if stacked is not None and may_be_classes(stacked, len(images)):
            unused.append(key)
        elif _names_of_classes(key, part, len(images)):
            texts.append(key)
    if not unused + texts:
        return
    what = "a class" if unused else "a text"
    shown = short(", ".join(map(quoted, unused or texts)), 100)
    at = next(quoted(key) for key in IMAGES if key in item)
    todo = f"label={quoted(unused[0])}" if unused else _numbered(at, quoted(texts[0]))
    raise UserError(
        f"loader: expected labels under {', '.join(LABELS)}, got {what} per image under {shown}. If "
        f"these are the labels, give {todo}; if there are no labels, say so: batch=lambda item: "
        f"(item[{at}], None)."
    )


def _names_of_classes(key: Any, part: Any, images: int) -> bool:
    """True for texts that may be classes: one per image, of which some are alike, and none is a path."""
    texts = part.tolist() if isinstance(part, np.ndarray) and part.dtype.kind in "US" else part
    if not isinstance(texts, tuple | list) or len(texts) != images or str(key).startswith("__"):
        return False
    if any(word in str(key).lower() for word in OF_FILES):
        return False
    if not all(isinstance(text, str) and "/" not in text for text in texts):
        return False
    return len(set(texts)) < len(texts)


def _numbered(images: str, labels: str) -> str:
    """The ``batch=`` that numbers classes given as texts."""
    return (
        f"batch=lambda item: (item[{images}], torch.tensor([names.index(name) for name in "
        f"item[{labels}]])) with the names in the order of the network's classes"
    )


def _another_form(item: Any, images: Tensor, labels: Tensor, names: Sequence[str]) -> str:
    """The line for labels that are a tensor, but not one class per image."""
    keys = IMAGES if isinstance(item, Mapping) else (0,)
    first = next((quoted(key) for key in keys if isinstance(key, int) or key in item), "...")
    second = next((quoted(key) for key in names if key in item), "1") if keys == IMAGES else "1"
    at, at_labels = f"item[{first}]", f"item[{second}]"
    if images.dim() == 3 and not labels.dim():
        return (
            f"loader: images: expected (B, channels, height, width), got {tuple(images.shape)}, one "
            f"image without a batch; give batch=lambda item: ({at}[None], {at_labels}[None])."
        )
    if images.dim() == 1 and labels.dim() == 4:
        return (
            f"loader: images: expected (B, channels, height, width), got {tuple(images.shape)}, and "
            f"such a tensor for labels; give batch=lambda item: ({at_labels}, {at})."
        )
    form = form_of(labels) or Form("a class per image", "")
    todo = f"give batch=lambda item: (item[{first}], item[{second}]{form.then})"
    if not form.then:
        todo = (
            "choose one class per image, or leave them out, and agreement with the whole model is "
            f"taken: batch=lambda item: (item[{first}], None)"
        )
    return (
        f"loader: labels: expected ({len(images)},) int64, one class per image, got "
        f"{tuple(labels.shape)}, which is {form.called}; {todo}."
    )


def _stacked(part: Any) -> Tensor | None:
    """(B, ...) of a tensor, an array, or a list of one number, array or tensor per image; None of anything else."""
    if isinstance(part, tuple | list) and part:
        tensors = [tensor for one in part if (tensor := _tensor(one)) is not None]
        return (
            torch.stack(tensors)
            if len(tensors) == len(part) and len({one.shape for one in tensors}) == 1
            else None
        )
    return _tensor(part) if isinstance(part, Tensor | np.ndarray) else None


def _tensor(part: Any) -> Tensor | None:
    """A tensor of a number or an array; None of texts, objects, and numbers that torch has no place for."""
    if not isinstance(part, Tensor | np.ndarray | np.generic | int):
        return None
    try:
        return torch.as_tensor(np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part)
    except (TypeError, ValueError, RuntimeError):
        return None


def _texts(item: Any, names: Sequence[str], labels: Sequence[Any]) -> str:
    """The line for labels that are texts; that of ``_unknown`` for others."""
    texts = labels[0].tolist() if isinstance(labels[0], np.ndarray) else labels[0]
    if not isinstance(texts, tuple | list) or not all(isinstance(one, str) for one in texts):
        return _unknown(item)
    at, at_labels = "0", "1"
    if isinstance(item, Mapping):
        at, at_labels = (next(quoted(key) for key in of if key in item) for of in (IMAGES, names))
    return (
        f"loader: labels: expected one class per image as int64, got texts, e.g. {quoted(texts[0])}. "
        f"Give {_numbered(at, at_labels)}; a path instead of a class is left out by batch=lambda "
        f"item: (item[{at}], item[...])."
    )


def _sizes_of(item: Any) -> str:
    """A sentence on images in a list that are of several sizes; "" for others."""
    for part in _parts_of(item):
        if not isinstance(part, tuple | list) or len(part) < 2:
            continue
        shapes = [tuple(one.shape) for one in part if isinstance(one, Tensor | np.ndarray)]
        if len(shapes) == len(part) and len({*shapes}) > 1 and len(shapes[0]) == 3:
            two = [*dict.fromkeys(shapes)][:2]
            return (
                f" The images are of several sizes, e.g. {two[0]} and {two[1]}: scale and crop them "
                "to the network's, as mhprobe.photos does."
            )
    return ""


def _unknown(item: Any) -> str:
    arrays = [part for part in _parts_of(item) if isinstance(part, Tensor | np.ndarray)]
    single = any(len(part.shape) == 3 for part in arrays)
    hint = (
        " One image at a time? Put the data set into a DataLoader, or batch it." if single else ""
    )
    return (
        f"loader: expected batches (images, labels, ...) of tensors, images alone, a dict of them "
        f"({', '.join(IMAGES[:3])} ...; {', '.join(LABELS[:2])} ...), or Batch, {_got(item)}."
        f"{_sizes_of(item) or hint} "
        f"Say where they are: batch=lambda item: (item[...], item[...])."
    )


def _parts_of(item: Any) -> list[Any]:
    """Return the values of a dict, and what is in a tuple or a list; nothing of anything else."""
    if isinstance(item, Mapping):
        return [*item.values()]
    return [*item] if isinstance(item, tuple | list) else []


def _got(item: Any) -> str:
    """The end of a sentence: "got a tuple of 2: ..."."""
    keys = (
        f" with {', '.join(f'{k!r} ({_called(item[k])})' for k in item)}"
        if isinstance(item, Mapping)
        else ""
    )
    things = (
        f" of {len(item)}: {', '.join(map(_called, item))}"
        if isinstance(item, tuple | list)
        else ""
    )
    return f"got a {short(f'{type(item).__name__}{keys}{things}', 200)}"


def _called(part: Any) -> str:
    if isinstance(part, Tensor | np.ndarray):
        return f"{tuple(part.shape)}"
    kinds = sorted({type(one).__name__ for one in part}) if isinstance(part, tuple | list) else []
    return f"{type(part).__name__} of {' and '.join(kinds[:3])}" if kinds else type(part).__name__
