"""Recognise data sets of other forms than class folders by the names of their files, to say what they are."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_PICTURE = r"\.(jpe?g|png|bmp|gif|webp|tiff?|ppm|pgm)$"
_FOLDERS = "write its images as train/<class>/* and test/<class>/*"


class _Form(NamedTuple):
    """A form of data set: a pattern of a file's name that only it has, its name, and what to do."""

    pattern: str
    called: str
    todo: str


_FORMS = (
    _Form(
        r"(^|/)(data_batch_\d|test_batch)$",
        "CIFAR-10's python batches",
        "give data=cifar10",
    ),
    _Form(
        r"(^|/)(data_batch_\d|test_batch)\.bin$",
        "CIFAR-10's binary batches",
        "give data=cifar10",
    ),
    _Form(
        r"(^|/)(fine_label_names\.txt|cifar-?100[^/]*/(train|test|meta)(\.bin)?|(train|test)\.bin)$",
        "CIFAR-100",
        f"{_FOLDERS} first (torchvision.datasets.CIFAR100 reads it)",
    ),
    _Form(
        r"(^|/)(train|test|unlabeled)_[Xy]\.bin$",
        "STL-10's binary files",
        f"{_FOLDERS} first (torchvision.datasets.STL10 reads them)",
    ),
    _Form(
        r"\.parquet$",
        "parquet tables, as Hugging Face's datasets are published",
        f"{_FOLDERS} first (datasets.load_dataset reads them), or measure in a notebook, where any "
        "loader will do",
    ),
    _Form(
        r"\.arrow$",
        "a data set saved by Hugging Face's datasets",
        f"{_FOLDERS} first (datasets.load_from_disk reads it), or measure in a notebook, where any "
        "loader will do",
    ),
    _Form(
        r"(^|/)(train|t10k)-(images|labels)[-.]idx\d-ubyte(\.gz)?$",
        "IDX files, as MNIST's",
        f"{_FOLDERS} first (torchvision.datasets.MNIST reads them)",
    ),
    _Form(
        r"\.tfrecords?(-\d+-of-\d+)?$",
        "TFRecords",
        f"{_FOLDERS} first (tensorflow_datasets reads them)",
    ),
    _Form(
        r"(^|/)annotations?/[^/]*\.json$",
        "annotations of objects, as COCO's",
        "take images of one class each; data=photos takes images without labels",
    ),
    _Form(
        r"(^|/)annotations?/.*\.xml$",
        "annotations of objects, as Pascal VOC's",
        "take images of one class each; data=photos takes images without labels",
    ),
    _Form(
        r"\.(mdb|lmdb)$",
        "an LMDB database",
        f"{_FOLDERS} first",
    ),
    _Form(
        r"\.(h5|hdf5)$",
        "HDF5 files",
        f"{_FOLDERS} first",
    ),
    _Form(
        r"\.mat$",
        "MATLAB files",
        f"{_FOLDERS} first",
    ),
    _Form(
        r"\.npz$|\.npy$",
        "NumPy arrays, as MedMNIST's",
        f"{_FOLDERS} first, or measure in a notebook, where any loader will do",
    ),
)
# names of folders of splits
TRAIN, TEST = ("train", "training"), ("test", "testing")
VALIDATION = ("val", "valid", "validation")
_NO_CLASSES = {"images", "image", "imgs", "img", "masks", "mask", "labels", "label", "annotations"}
_TABLE = r"\.(csv|tsv|jsonl?|txt|xlsx?)$"
_SHARD = r"\.(tar|tar\.gz|tgz|zip)$"


def other_form(names: Sequence[str], hidden: Callable[[str], bool]) -> str:
    """Return sentences on the form of the data set with these files, and what to do; "" if it is not known.

    hidden: True for names that do not count.
    """
    files = [name for name in names if not hidden(name)]
    if {"train", "test", "meta"} <= {*files}:  # the folder itself, whose name the files don't have
        files = [f"cifar-100-python/{name}" for name in files]
    for form in _FORMS:
        if any(re.search(form.pattern, name, re.IGNORECASE) for name in files):
            return f"It holds {form.called}: {form.todo}."
    pictures = [name for name in files if re.search(_PICTURE, name, re.IGNORECASE)]
    if shards := [name for name in files if re.search(_SHARD, name, re.IGNORECASE)]:
        return (
            f"It holds archives ({shards[0]}): give one that has train/ and test/ in it, or unpack "
            "them."
        )
    if not pictures:
        return ""
    if any(f"{_stem(name)}.cls" in files for name in pictures):
        return f"It is a shard of WebDataset, with labels in .cls files: {_FOLDERS} first."
    return _of_pictures(pictures, files)


def other_file(name: str) -> str:
    """Return a sentence on the form of a data set that is this one file, and what to do; "" if it is not known."""
    for form in _FORMS:
        if re.search(form.pattern, name, re.IGNORECASE):
            return f"It belongs to {form.called}: {form.todo}."
    if re.search(_TABLE, name, re.IGNORECASE):
        return (
            f"It is a table, which is not read: {_FOLDERS} first, as it says, links will do; or "
            "take data=photos with the folder of images, which needs no labels."
        )
    if re.search(_PICTURE, name, re.IGNORECASE):
        return "It is one image: give the folder that it lies in."
    return ""


def _of_pictures(pictures: Sequence[str], files: Sequence[str]) -> str:
    """The form of a data set of image files."""
    splits = sorted({part for name in pictures for part in name.split("/")[:-1] if _split(part)})
    deep = [name for name in pictures if splits and _below_split(name) > 1]
    if deep:
        *_, over, inner, _ = deep[0].split("/")
        return (
            f"Its classes are nested ({deep[0]}): is {over} the class, or {inner}? Put the images "
            "of each class straight into train/<class>/ and test/<class>/; links will do."
        )
    folders = {name.rpartition("/")[0] for name in pictures}
    # one folder of images beside a table is no class
    if all(_below_split(name) == 0 for name in pictures) or (not splits and len(folders) == 1):
        return _flat(pictures, files, splits)
    last = sorted({folder.rpartition("/")[2] for folder in folders})
    if {name.lower() for name in last} <= _NO_CLASSES:
        return (
            f"Its folders ({', '.join(last)}) are no classes, as of a data set for segmentation: take "
            "images of one class each; data=photos takes images without labels."
        )
    if not splits:
        return (
            "It has a folder for each class, and no train/ and test/ around them: give "
            "test_fraction=0.2 to draw the test images, or move them to test/<class>/."
        )
    if len(splits) > 1 and all(_below_split(name) == 1 for name in pictures):
        return (
            f"Its splits are called {', '.join(splits)}: call them train and test, or val; links will "
            "do."
        )
    return ""


def _flat(pictures: Sequence[str], files: Sequence[str], splits: Sequence[str]) -> str:
    """The form of a data set whose images lie in no folders of classes."""
    tables = [name for name in files if re.search(_TABLE, name, re.IGNORECASE)]
    tables = [name for name in tables if not re.search(r"readme|licen[cs]e", name, re.IGNORECASE)]
    if tables:
        return (
            f"Its labels stand in a table ({tables[0]}), which is not read: {_FOLDERS} first, as "
            "the table says, links will do; or take data=photos, which needs no labels."
        )
    if splits and "/" in pictures[0].rpartition("/")[0]:
        above = pictures[0].split("/")[-3]
        return (
            f"Its splits lie below the classes ({pictures[0]}, in the place of "
            f"{pictures[0].split('/')[-2]}/{above}/*): {_FOLDERS}; links will do."
        )
    if splits:
        return (
            f"The images in {', '.join(splits)} lie in no folders of classes: {_FOLDERS}; or take "
            "data=photos, which needs no labels."
        )
    return f"Its images lie in no folders of classes: {_FOLDERS}; or take data=photos, which needs no labels."


def _split(part: str) -> bool:
    """True for train, val, dev and the like, also with what often follows: train2017, test_images."""
    names = "|".join((*TRAIN, *TEST, *VALIDATION, "dev", "eval"))
    return bool(re.fullmatch(rf"({names})([-_ ]?(set|images?|imgs?|data|\d+))?", part.lower()))


def _below_split(name: str) -> int:
    """Number of folders between a split, or the root of all, and an image."""
    folders = name.split("/")[:-1]
    at = next((place for place, part in enumerate(folders) if _split(part)), None)
    return len(folders) if at is None else len(folders) - at - 1


def _stem(name: str) -> str:
    """The name up to the first dot of its last part, as WebDataset groups files."""
    folder, slash, leaf = name.rpartition("/")
    return f"{folder}{slash}{leaf.split('.')[0]}"
