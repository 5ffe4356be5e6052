"""The two networks and the images that a comparison is told of."""

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, family_of, gives_features
from mhprobe.data.augment import channels_shown, normalise
from mhprobe.data.decoding import Levels, Size, decode, levels_given, refuse_bombs
from mhprobe.data.draws import evenly_spread
from mhprobe.data.images import Notes, OfSet, by_number, class_list, orders_apart
from mhprobe.data.photos import listed, of_channels, suited
from mhprobe.differences.compare import LEAST, Batch, Batches, Null
from mhprobe.differences.exported import Onnx
from mhprobe.differences.sides import Side, Torch, refuse_other_blocks
from mhprobe.errors import UserError, quoted, short
from mhprobe.io.readings import Reading
from mhprobe.io.spelling import as_spelled_in
from mhprobe.io.written import counted
from mhprobe.pages.looking.network import FOUND, Asked, OpenNetwork, coloured, network_to_look_at
from mhprobe.pages.looking.photographs import in_words, read_each

Given = nn.Module | str | Path | OpenNetwork


class Opened(NamedTuple):
    """A side, the images that it expects (size, mean, std), its precision, and names of its classes, if known.

    readings: how its file and its images are interpreted. epochs: files that its run has kept of
    them, in their order.
    """

    side: Side
    spec: dict[str, Any]
    dtype: torch.dtype
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    epochs: tuple[Path, ...] = ()


def opened(
    given: Given,
    weights: str | Path | None = None,
    size: int | None = None,
    name: str = "",
    asked: Asked = FOUND,
) -> Opened:
    """Open a PyTorch network: one of a notebook, or by a name that ``look`` knows.

    asked: how its file and its images are read; one line says what was guessed.
    Raises UserError for anything else.
    """
    if exported(given):
        raise UserError(
            f"diff: {given} is an export: give the PyTorch network that it was made from first, and "
            "the export second."
        )
    if isinstance(given, str | Path):
        if not str(given).strip():
            raise UserError(
                f"diff: an empty name: expected a network, as a run's folder or a file of weights, "
                f"got {quoted(str(given))}."
            )
        _refuse_missing(given, weights)
    try:
        if isinstance(given, OpenNetwork):
            network = given
        else:
            network = network_to_look_at(given, weights, size, classifier=True, asked=asked)
            network = coloured(network, asked.mean, asked.std, "diff")
    except UserError as error:
        raise UserError(f"diff: {str(error).removeprefix('look: ')}") from error
    side = Torch(network.model, name or network.name)
    about = network.notes, network.class_names, network.readings
    epochs = kept_epochs(Path(given).expanduser()) if isinstance(given, str | Path) else ()
    return Opened(side, network.spec, side.dtype, *about, epochs)


def kept_epochs(folder: Path) -> tuple[Path, ...]:
    """Return the checkpoints of epochs that a run's folder has kept, from the first to the last."""
    files = folder.glob("checkpoints/epoch_*.ckpt")
    numbered = {file.stem.removeprefix("epoch_"): file for file in files}
    return tuple(numbered[number] for number in sorted(filter(str.isdigit, numbered), key=int))


def exported(given: object) -> bool:
    """Return True for the name of an ONNX file."""
    return isinstance(given, str | Path) and Path(given).suffix == ".onnx"


def export(given: str | Path, a: Opened, batches: Batches) -> Opened:
    """Open an ONNX file beside the network that it was made from. UserError as of ``Onnx``."""
    _refuse_missing(given, None)
    assert isinstance(a.side, Torch)
    first = next(batches(1)).ours
    side = Onnx(Path(given).expanduser(), a.side, first)
    return Opened(side, a.spec, side.dtype)


def _refuse_missing(given: str | Path, weights: str | Path | None) -> None:
    """UserError for a file that is not there, which would be taken for a name of timm's."""
    there = Path(given).expanduser()
    file = there.suffix in (".safetensors", ".ckpt", ".onnx", ".pth", ".pt")
    if file and not there.exists():
        raise UserError(f"diff: {there}: there is no such file.")
    if there.suffix in (".pth", ".pt") and weights is None:
        raise UserError(
            f"diff: {there}: weights alone say no architecture. Give a timm name and --weights {there}."
        )


def classes_of(side: Side) -> bool:
    """Return True if a side gives logits."""
    return isinstance(side, Torch) and not (
        side.model is side.backbone and gives_features(side.backbone)
    )


def refuse_other_images(a: Opened, b: Opened) -> None:
    """Raise UserError for two networks of images of other sizes, or of other channels."""
    channels = [len(one.spec["mean"]) for one in (a, b)]
    if channels[0] != channels[1]:
        raise UserError(
            f"diff: the two do not fit: the first, {a.side.name}, takes images of "
            f"{counted(channels[0], 'channel')}, the second, {b.side.name}, of {channels[1]}. Give "
            "two networks of the same images."
        )
    if tuple(a.spec["size"]) != tuple(b.spec["size"]):
        sizes = [" x ".join(map(str, one.spec["size"])) for one in (a, b)]
        raise UserError(
            f"diff: {a.side.name} takes images of {sizes[0]} pixels and {b.side.name} of {sizes[1]}. "
            "Give --size, or build both for one size."
        )


def same_ends(a: Opened, b: Opened) -> tuple[Opened, Opened]:
    """Return both, without the classifier of one where the other gives features, as before and after tuning."""
    ends = [classes_of(one.side) for one in (a, b)]
    if not (isinstance(a.side, Torch) and isinstance(b.side, Torch)) or ends[0] == ends[1]:
        return a, b
    return (_features(a), b) if ends[0] else (a, _features(b))


def same_order(a: Opened, b: Opened) -> Opened:
    """Return ``b`` with its logits in the order of ``a``'s classes, and a note, where the orders differ.

    A note tells of other classes, too. If a file names no classes, logits are compared as they are.
    """
    mine, theirs = a.class_names, b.class_names
    numbers = tuple(str(number) for number in range(len(mine)))
    if mine == theirs or len(mine) != len(theirs) or numbers in (mine, theirs):
        return b
    if sorted(mine) == sorted(theirs) and len({*mine}) == len(mine):
        side = _reordered(b.side, [theirs.index(name) for name in mine])
        if side is not None:
            said = (
                f"The classes of {b.side.name} are in another order; its logits are put in the order "
                f"of {a.side.name}."
            )
            return b._replace(side=side, notes=(*b.notes, said), class_names=mine)
    odd = next(at for at, name in enumerate(mine) if theirs[at] != name)
    said = (
        f"Logit {odd} is of class {quoted(mine[odd])} in {a.side.name} and of {quoted(theirs[odd])} "
        f"in {b.side.name}; logits are compared by their numbers."
    )
    return b._replace(notes=(*b.notes, said))


def _reordered(side: Side, places: list[int]) -> Torch | None:
    """A copy of a network whose logits are those at ``places``; None where its classifier is not one layer."""
    if not isinstance(side, Torch):
        return None
    model = copy.deepcopy(side.model)
    layer = family_of(side.backbone).classifier(backbone_of(model))
    if not isinstance(layer, nn.Linear) or layer.out_features != len(places):
        return None
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(value[places])
    return Torch(model, side.name)


def _features(of: Opened) -> Opened:
    """A copy of timm's network that gives features; the same where its classifier cannot be taken off."""
    assert isinstance(of.side, Torch)
    backbone: Any = copy.deepcopy(of.side.backbone)
    if not hasattr(backbone, "reset_classifier"):
        return of
    backbone.reset_classifier(0)
    said = f"The classifier of {of.side.name} is left out, for the other network has none."
    return of._replace(side=Torch(backbone, of.side.name), notes=(*of.notes, said))


def refuse_unlike_pair(a: Opened, b: Opened) -> None:
    """Raise UserError for two networks of other blocks, or of other images."""
    refuse_other_blocks(a.side, b.side)
    refuse_other_images(a, b)


def guessed_null(a: Side, b: Side) -> tuple[Null, str]:
    """Choose what nothing looks like, and say why in a sentence.

    Rounding for a copy: another precision, a quantised or a pruned one, or equal weights in half
    of the parameters or more. A parameter that is one number throughout, as fresh norms and biases
    are, is alike in networks that have nothing in common, and does not count.
    """
    if not (isinstance(a, Torch) and isinstance(b, Torch)):
        return "rounding", f"{b.name} is an export of {a.name}: the null is rounding."
    if b.kept and b.kept != a.kept:
        return "rounding", f"{b.name} is pruned: its other units are held against rounding."
    if a.dtype != b.dtype:
        return "rounding", "The two have other precisions: the null is rounding."
    if a.backbone.state_dict().keys() != b.backbone.state_dict().keys():
        return "rounding", "The two hold other tensors, as after quantising: the null is rounding."
    theirs = dict(b.backbone.named_parameters())
    both = [(mine, theirs[key]) for key, mine in a.backbone.named_parameters() if key in theirs]
    telling = [pair for pair in both if not all(map(_one_number, pair))]
    same = sum(mine.shape == other.shape and torch.equal(mine, other) for mine, other in telling)
    if 2 * same >= len(telling):
        return (
            "rounding",
            f"{same} of {len(telling)} parameters are equal, so one is taken for a copy: the null is "
            "rounding.",
        )
    return (
        "images",
        f"{len(telling) - same} of {len(telling)} parameters differ, so they are taken for two "
        "trainings: the null is another photograph.",
    )


def _one_number(values: Tensor) -> bool:
    return values.numel() == 0 or bool((values == values.flatten()[0]).all())


class Pictures(NamedTuple):
    """Images of a comparison. pixels: (N, C, side, side) uint8, or floats that are normalised already.

    labels: (N,) int64 or None. names: of files. notes: on files left out, and on the order of
    classes. classes: their number; None where labels are numbers.
    """

    pixels: Tensor
    labels: Tensor | None
    names: list[str]
    notes: list[str]
    classes: int | None = None

    def batches(self, a: dict[str, Any], b: dict[str, Any]) -> Batches:
        """Return a function that walks the images as two networks expect them. a, b: size, mean, std.

        Asked for two images at a time or more, it leaves none alone, since each is compared with
        another of its batch: of an odd number, one batch has three instead of two.
        """

        def walk(size: int) -> Iterator[Batch]:
            images = len(self.pixels)
            parts = math.ceil(images / size)
            if size > 1:
                parts = min(parts, images // 2)
            for places in torch.arange(images).tensor_split(parts):
                part = self.pixels[places]
                labels = None if self.labels is None else self.labels[places]
                if part.dtype != torch.uint8:
                    yield Batch(part, part, labels)
                    continue
                ours, theirs = (normalise(part, of["size"], of["mean"], of["std"]) for of in (a, b))
                yield Batch(ours, theirs, labels)

        return walk


class Labelled(NamedTuple):
    """Folders of photographs as their classes.

    classes: their order, as for ``ImageFolder``; or its names, of which some may have no folder.
    None takes ``known``, the names of the network's classes, or else the order of texts.
    """

    classes: str | None = None
    known: tuple[str, ...] = ()


def pictures(
    images: Any,
    labels: Tensor | None,
    size: Size,
    limit: int,
    labelled: Labelled | None = None,
    levels: float | Sequence[float] | None = None,
    channels: int = 3,
) -> Pictures:
    """Read the images of a comparison.

    images: a folder or archive, (N, C, height, width) uint8, or floats, normalised. labelled: the
    folders that photographs stand in are their classes; None for none. size: of the network's
    images, (height, width) or the side of squares. levels: the value of white, or of black and
    white, in files of more than 8 bits; None finds it. channels: C of the network; photographs fit
    3, and 1 in grey; for other numbers a folder has .npy arrays. Raises UserError for fewer than ``LEAST``,
    for labels of another number, for what is no image, and for levels beside a tensor.
    """
    if isinstance(images, str | Path):
        given = levels_given(levels, "diff: levels")
        return _photographs(images, size, limit, labelled, given, channels)
    if levels is not None:
        raise UserError(
            "diff: levels: is of files; a tensor of images has been read. Leave it out."
        )
    _refuse_no_images(images, channels)
    if labels is not None and (labels.shape != (len(images),) or labels.dtype != torch.int64):
        raise UserError(
            f"diff: labels: expected ({len(images)},) int64, one class per image, got "
            f"{tuple(labels.shape)} {labels.dtype}."
        )
    _refuse_few(len(images), "images")
    return Pictures(images, labels, [f"image {number}" for number in range(len(images))], [])


def _refuse_few(count: int, where: str, left_out: Sequence[str] = ()) -> None:
    if count < LEAST:
        because = f" {left_out[0]}" if left_out else ""
        raise UserError(
            f"diff: {where}: expected at least {LEAST} photographs, got {count}: fewer leave the "
            f"tests nothing to vary over.{because}"
        )


def _refuse_no_images(images: Any, channels: int) -> None:
    """Raise UserError for what is no tensor of images of so many channels; colours in uint8 fit 1, too."""
    expected = f"diff: images: expected a folder, or a tensor (N, {channels}, height, width)"
    if not isinstance(images, Tensor):
        raise UserError(f"{expected}, got {quoted(images)}.")
    fitting = {1, 3} if channels == 1 and images.dtype == torch.uint8 else {channels}
    if images.dim() != 4 or images.shape[1] not in fitting:
        raise UserError(f"{expected}, got {tuple(images.shape)}.")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise UserError(
            f"diff: images: expected uint8 pixels, or normalised floats, got {images.dtype}."
        )


def _photographs(
    folder: str | Path,
    size: Size,
    limit: int,
    labelled: Labelled | None,
    levels: Levels | None,
    channels: int,
) -> Pictures:
    if limit < LEAST:
        raise UserError(
            f"diff: limit: expected at least {LEAST} photographs, got {limit}: fewer leave the tests "
            "nothing to vary over."
        )
    archive, every = listed(folder, "diff")
    every = suited(every, channels)
    _refuse_few(min(len(every), limit), str(folder))
    refuse_bombs()
    taken = [every[number] for number in evenly_spread(limit, len(every))]
    readings: Notes = []
    wide = OfSet(archive, taken, readings)  # one white for all files of more than 8 bits

    def image(data: bytes, name: str) -> np.ndarray:
        decoded = decode(data, size, True, name, levels or wide.levels)
        return of_channels(decoded, channels, name)

    read, left_out = read_each(archive, taken, image, readings)
    notes = [*(f"Left out: {line}" for line in left_out), *in_words(readings)]
    names = sorted(read)
    _refuse_few(len(names), str(folder), notes)
    if len(every) > limit:
        notes.insert(0, f"{len(names)} of the {len(every)} photographs are taken, evenly by name.")
    pixels = torch.from_numpy(np.stack([read[name] for name in names])).permute(0, 3, 1, 2)
    if part := channels_shown(pixels.shape[1]):
        notes.append(f"Pictures show {part}.")
    if labelled is None:
        return Pictures(pixels, None, names, notes)
    folders = sorted(set(map(_folder_of, every)))
    classes, reading = _classes(folders, labelled, folder)
    labels = torch.tensor([classes.index(_folder_of(name)) for name in names])
    return Pictures(pixels, labels, names, [*notes, f"{reading}."], len(classes))


def _folder_of(name: str) -> str:
    return PurePosixPath(name).parent.name


def _classes(
    folders: list[str], labelled: Labelled, folder: str | Path
) -> tuple[list[str], Reading]:
    """Return the classes in the order of the network's logits, and how their order was found.

    UserError for fewer than two folders, and for one that is no class.
    """
    if len(folders) < 2:
        raise UserError(
            f"diff: --labelled: {folder} has {len(folders)} folder of photographs, expected one for "
            "each class."
        )
    classes, source, guess = _in_order(folders, labelled)
    classes = as_spelled_in(classes, folders)
    if odd := [name for name in folders if name not in classes]:
        raise UserError(
            f"diff: --labelled: {folder} has a folder {quoted(odd[0])}, which is none of the "
            f"{len(classes)} classes ({short(', '.join(classes), 100)}). Name all classes in the "
            "order of the network's logits with --classes FILE, one a line."
        )
    some = f" of {len(classes)} classes" if len(folders) < len(classes) else ""
    taken = f"{len(folders)} folders{some} ({short(', '.join(classes), 60)})"
    return classes, Reading("classes", taken, source, guess, "--classes number" if guess else "")


class _Order(NamedTuple):
    """Classes in the order of the logits, and who says so. guess: another order is as likely."""

    classes: list[str]
    source: str
    guess: bool = False


def _in_order(folders: list[str], labelled: Labelled) -> _Order:
    """Order the classes by the user's list or rule, else by the network's names, else as texts."""
    order = class_list(labelled.classes)
    if isinstance(order, list):
        return _Order(order, "as given")
    if order:
        return _Order(sorted(folders, key=by_number) if order == "number" else folders, "as given")
    if labelled.known:
        return _Order(list(labelled.known), "by the names of the network's classes")
    source, apart = "in the order of texts", orders_apart(folders)
    if apart is None:
        return _Order(folders, source)
    source += f"; in the order of numbers {apart[0]} stands in the place of {apart[1]}"
    return _Order(folders, source, guess=True)
