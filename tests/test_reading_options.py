"""Options of how inputs are read: each exists where the thing is read, on the command line and in Python, by one name.

A row is a place that reads. It has an option, or a reason why there is nothing to say.
"""

from __future__ import annotations

import inspect

import pytest

import mhprobe
import runs
from mhprobe import differing, looking, shrink
from mhprobe.data.cifar10 import Cifar10
from mhprobe.data.images import ImageFolder
from mhprobe.data.photos import Photos
from mhprobe.io.options import Parser

OPTIONS = ("label", "output", "classes", "mean", "std", "prefix", "leave_out", "levels")
NO_LABELS = "images come without labels"
TENSORS = "images are tensors, which somebody has read and normalised"
GIVEN = "labels are numbers that the user gives"
LOADED = "a network of Python: mhprobe.load has it"
OWN = "weights of mhprobe: their JSON says it"
FOLDERS = "classes are folders"
ONE = "networks of timm and of mhprobe give one tensor"
SOURCE = "of data.source"
NETWORK = "of the network, not of the images: backbone has it"
IMAGES = "of the images, not of the network: data.source has it"
IN_BATCHES = "images of a loader: who makes it names their order"
HEADS = "what heads do is no output of the network"

NOT_HERE = {  # place -> option -> why it is not there; all others are
    "load": dict.fromkeys(("label", "output", "classes", "levels"), "no image is read"),
    "photos": dict.fromkeys(("label", "classes"), NO_LABELS)
    | dict.fromkeys(("prefix", "leave_out"), LOADED)
    | {"output": "the network is not run"},
    "look": dict.fromkeys(("label", "classes"), NO_LABELS) | {"output": HEADS},
    "diff": dict.fromkeys(("label", "classes"), GIVEN)
    | dict.fromkeys(("prefix", "leave_out"), LOADED),
    "live": dict.fromkeys(("label", "classes"), GIVEN)
    | dict.fromkeys(("prefix", "leave_out"), LOADED)
    | {"levels": TENSORS, "output": "the page holds the backbone, which gives logits alone"},
    "record": dict.fromkeys(("label", "classes"), GIVEN)
    | dict.fromkeys(("mean", "std", "levels"), TENSORS)
    | dict.fromkeys(("prefix", "leave_out"), LOADED),
    "attention": dict.fromkeys(("mean", "std", "levels"), TENSORS)
    | dict.fromkeys(("label", "classes"), NO_LABELS)
    | dict.fromkeys(("prefix", "leave_out"), LOADED)
    | {"output": HEADS},
    **dict.fromkeys(
        ("measure", "masking_curve"),
        dict.fromkeys(("mean", "std", "levels"), TENSORS)
        | dict.fromkeys(("prefix", "leave_out"), LOADED)
        | {"classes": IN_BATCHES},
    ),
    "ImageFolder": dict.fromkeys(("mean", "std", "prefix", "leave_out", "output"), NETWORK)
    | {"label": FOLDERS},
    "Photos": dict.fromkeys(("mean", "std", "prefix", "leave_out", "output"), NETWORK)
    | dict.fromkeys(("label", "classes"), NO_LABELS),
    "Cifar10": dict.fromkeys(("mean", "std", "prefix", "leave_out", "output"), NETWORK)
    | dict.fromkeys(("label", "classes", "levels"), "its files say it"),
    "--look": dict.fromkeys(("label", "classes"), NO_LABELS) | {"output": HEADS},
    "--diff": {"label": FOLDERS, "output": ONE},
    "--shrink": dict.fromkeys(("mean", "std", "prefix", "leave_out"), OWN)
    | {"label": FOLDERS, "output": ONE},
    "backbone=": dict.fromkeys(("label", "classes", "levels"), IMAGES) | {"output": ONE},
    "data=image_folder": dict.fromkeys(("mean", "std", "prefix", "leave_out", "output"), NETWORK)
    | {"label": FOLDERS},
    "data=photos": dict.fromkeys(("mean", "std", "prefix", "leave_out", "output"), NETWORK)
    | dict.fromkeys(("label", "classes"), NO_LABELS),
}
CLASSES = {"ImageFolder": ImageFolder, "Photos": Photos, "Cifar10": Cifar10}
COMMANDS = {"--look": looking._parsed, "--diff": differing._parsed, "--shrink": None}


def there(place: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of options that a place takes."""
    if place in COMMANDS:
        return of_command(place, monkeypatch)
    if place.endswith("backbone="):
        return set(runs.composed("probe").backbone)
    if place.startswith("data="):
        return set(runs.composed("probe", place).data.source)
    made = CLASSES.get(place) or getattr(mhprobe, place)
    return set(inspect.signature(made).parameters)


def of_command(place: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: list[Parser] = []

    def parse(parser: Parser, *_: object) -> None:
        seen.append(parser)
        raise SystemExit

    monkeypatch.setattr(Parser, "parse_args", parse)
    with pytest.raises(SystemExit):
        (COMMANDS[place] or (lambda _: shrink.parser().parse_args()))([])
    words = [word for action in seen[0]._actions for word in action.option_strings]
    return {word.removeprefix("--").replace("-", "_") for word in words}


@pytest.mark.parametrize("place", NOT_HERE)
def test_an_option_is_where_the_thing_is_read_or_there_is_a_reason(place, monkeypatch):
    names, reasons = there(place, monkeypatch), NOT_HERE[place]
    assert {option for option in OPTIONS if option in names} == {*OPTIONS} - {*reasons}
    assert {*reasons} <= {*OPTIONS} and all(reasons.values())


def test_an_option_that_reads_has_a_place():
    """Each is somewhere on the command line and somewhere in Python, but for keys of batches."""
    has = {place: {*OPTIONS} - {*reasons} for place, reasons in NOT_HERE.items()}
    command = set().union(*(of for place, of in has.items() if "-" in place or "=" in place))
    python = set().union(
        *(of for place, of in has.items() if "-" not in place and "=" not in place)
    )
    assert python == {*OPTIONS} and command == {*OPTIONS} - {"label", "output"}
