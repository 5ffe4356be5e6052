"""Images that a network is shrunk on: class folders, a data set that needs no file, or photographs without labels."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.cifar10 import Cifar10
from mhprobe.data.decoding import levels_given
from mhprobe.data.digits import Digits
from mhprobe.data.images import ImageFolder
from mhprobe.data.photos import Photos, listed, suited
from mhprobe.data.scenes import Scenes
from mhprobe.data.source import Source, other_classes
from mhprobe.errors import UserError, nearest, quoted
from mhprobe.io.written import counted
from mhprobe.weights.hub import PREFIX

LEAST = 50  # images that choose, and as many that judge: of fewer an interval is over 5 points wide
NAMED = {"digits": Digits, "scenes": Scenes}  # data sets that need no file
OF_SETTINGS = "root=<archive or folder you have> or data=digits"  # what to do, for a run
UNUSED = 0.02  # share of photographs for validation, which nothing here asks for
READINGS = ("classes", "levels")  # options that say how class folders are read
BATCH = 32  # images of a batch in training


class AskedImages(NamedTuple):
    """Images that a command asks for.

    place: a folder or an archive; a name of ``NAMED``; None for the data set that the weights name.
    labels: "folders" (the classes are folders' names) or "none". choose, judge: numbers of images.
    classes: order of class folders, "text", "number" or a file of names. levels: white, or black and
    white, of files with over 8 bits. Both None to find them.
    """

    place: str | None = None
    labels: str = "folders"
    choose: int = 2000
    judge: int = 2000
    seed: int = 0
    classes: str | None = None
    levels: float | list[float] | None = None


def refuse_asked(asked: AskedImages, weights: str) -> None:
    """Raise UserError for numbers that are too small, and for all files that are missing, before one is read."""
    for option, got in (("images", asked.choose), ("test-images", asked.judge)):
        if got < LEAST:
            raise UserError(
                f"--{option}: expected at least {LEAST}: of fewer no interval is worth a sentence, "
                f"got {got}."
            )
    if asked.labels == "none" and asked.place is None:
        raise UserError("--data: expected a folder or archive of photographs, got none.")
    if missing := [*_missing_weights(weights), *_missing_data(asked)]:
        raise UserError(f"{'; and '.join(missing)}.")
    if asked.labels == "none" and asked.place is not None:
        _refuse_few_photographs(asked.place)


def _missing_weights(weights: str) -> list[str]:
    """Return the complaint about weights that are not there, if any."""
    if weights.startswith(PREFIX) or Path(weights).expanduser().exists():
        return []
    return [f"{weights} does not exist; expected weights: a file, a run or {PREFIX}..."]


def _missing_data(asked: AskedImages) -> list[str]:
    """Return the complaint about images that are not there, if any. Class folders may have one of ``NAMED``."""
    place = asked.place
    if place is None or Path(place).expanduser().exists():
        return []
    close = ""
    if asked.labels != "none":
        if place in NAMED:
            return []
        close = nearest(place, NAMED)
    return [f"--data: {place} does not exist; {close}expected a folder or archive of images"]


def _refuse_few_photographs(place: str) -> None:
    """Raise UserError for a folder or archive of fewer photographs than choose and judge."""
    files = suited(listed(place, "--data")[1])
    if len(files) < 2 * LEAST:
        raise UserError(
            f"--data: {place} has {counted(len(files), 'photograph')}, expected at least {2 * LEAST}: "
            "half of them choose, the others judge."
        )


def read_images(asked: AskedImages, description: Mapping[str, Any], cache: str | Path) -> ImageData:
    """Read the images for the network of ``description``.

    Raises UserError for data that cannot be read, of other classes, or of too few images.
    """
    size = tuple(description["input"]["size"])
    data = ImageData(
        _source(asked, description["data"], max(size), cache),
        batch_size=BATCH,
        val_fraction=UNUSED if asked.labels == "none" else 0.1,
        seed=asked.seed,
        cache_dir=cache,
        limit_train=asked.choose,
        limit_test=asked.judge,
        limit_val=1,
    )
    spec = {key: tuple(description["input"][key]) for key in ("size", "mean", "std")}
    data.spec = InputSpec(**spec)
    try:
        data.list_images()
        for split in ("train", "test"):  # damage is told now; no validation image is asked for
            _ = data.splits[split].opened
    except UserError as error:  # a source says what is of its settings
        text = str(error).removeprefix("root: ").replace(OF_SETTINGS, "--data <archive or folder>")
        raise UserError(f"--data: {text}") from error
    theirs = description["class_names"]
    if not data.unlabelled and (differ := other_classes(theirs, data.class_names)):
        raise UserError(
            f"--data: the weights have {differ} They were trained on {description['data']}. "
            "Without their classes: --labels none."
        )
    for split, does in (("train", "choose"), ("test", "judge")):
        if (got := data.sizes[split]) < LEAST:
            raise UserError(
                f"--data: {data.source.name} has {got} images to {does} on, expected at least "
                f"{LEAST}. Add images."
            )
    return data


def _source(asked: AskedImages, trained_on: str, side: int, cache: str | Path) -> Source:
    """Return the source. side: pixels of the network's images."""
    levels = levels_given(asked.levels, "--levels")
    if asked.labels == "none":
        _refuse_readings(asked, "photographs without labels", "classes")
        return Photos(asked.place, stored_size=side, levels=levels)
    own = trained_on == "cifar10" or asked.place is None or asked.place in NAMED
    if asked.place is not None and not own:
        place = Path(asked.place).expanduser()
        return ImageFolder(place, side, classes=asked.classes, levels=levels)
    _refuse_readings(asked, asked.place if asked.place in NAMED else trained_on, *READINGS)
    if asked.place in NAMED:
        return NAMED[asked.place]()
    if asked.place is not None:
        return Cifar10(Path(asked.place).expanduser())
    if trained_on in NAMED:
        return NAMED[trained_on]()
    if trained_on == "cifar10":
        return Cifar10(None, cache)
    raise UserError(
        f"--data: the weights were trained on {quoted(trained_on)}; expected a folder or archive "
        "of its images, train/<class>/* and test/<class>/*, or photographs with --labels none."
    )


def _refuse_readings(asked: AskedImages, data: str, *options: str) -> None:
    """Raise UserError for a typed option that the data have no use for."""
    for option in options:
        if getattr(asked, option) is not None:
            raise UserError(f"--{option}: is of class folders, not of {data}. Leave it out.")


def settings_for_train(data: ImageData) -> str:
    """Return the settings with which ``mhprobe.train`` reads the same data; "" without labels."""
    if data.unlabelled:
        return ""
    root = getattr(data.source, "root", None)
    named = f"data={data.source.name}"
    if root is None or getattr(data.source, "_may_download", False):
        return named
    read = [
        f" {shlex.quote(f'data.source.{option}={_written(value)}')}"
        for option in READINGS
        if (value := getattr(data.source, option, None)) is not None
    ]
    return f"{named} data.root={shlex.quote(str(Path(root).resolve()))}{''.join(read)}"


def _written(value: Any) -> str:
    """Return a value of an option as a command line of Hydra takes it; a file by its whole path."""
    if isinstance(value, tuple):
        return f"[{','.join(f'{part:g}' for part in value)}]"
    file = Path(value).expanduser()
    return str(file.resolve()) if file.is_file() else str(value)
