"""The course of heads over a training: the same measures in the checkpoints between two networks.

Shapes: A heads of the first network, F folds of images, P points: before, the checkpoints, after.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mhprobe.backbones import backbone_of
from mhprobe.data.draws import evenly_spread
from mhprobe.differences.alike import ENDS as OF_ITSELF
from mhprobe.differences.compare import likeness
from mhprobe.differences.errors import Pairs
from mhprobe.differences.sides import Torch, paired, refuse_unlike
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import progress
from mhprobe.pages.diffing.changes import Folds, Values, taken_of
from mhprobe.pages.diffing.opened import Opened, kept_epochs, opened, refuse_unlike_pair, same_ends
from mhprobe.report.tables import Table
from mhprobe.weights.foreign import load_foreign

MOST = 10  # kept epochs that are measured without being asked for
SUFFIXES = (".ckpt", ".safetensors", ".pth", ".pt")
ENDS = ("", "_low", "_high")
Along = str | Path | Sequence[str | Path] | None
"""Checkpoints between two networks, in their order, or a folder of them; None for those that a run has kept."""


class Course(NamedTuple):
    """Values of heads over a training.

    points: their names, "before" and "after" at the ends. curves: (3, P, A) values and ends of
    their 95 % intervals, by the beginning of the columns; first "svcca", the likeness of a head's
    outputs with itself before.
    """

    points: tuple[str, ...]
    curves: Mapping[str, Tensor]

    def table(self, layout: HeadLayout) -> Table:
        """head (flat index), site, block, index (within the site), point, then the columns. layout: of A's heads."""
        names = [f"{name}{end}" for name in self.curves for end in ENDS]
        values = torch.cat([of.double() for of in self.curves.values()])
        rows = [
            [flat, site.name, site.block, index, point, *values[:, at, flat].tolist()]
            for flat, (_, index, site) in enumerate(layout)
            for at, point in enumerate(self.points)
        ]
        return Table(["head", "site", "block", "index", "point", *names], rows)


def files_along(given: Along, epochs: Sequence[Path]) -> list[Path]:
    """Return the files of weights between two networks, in the order of their numbers.

    given: files, or a folder of them; None takes ``epochs``, which B's run has kept, ``MOST`` of them
    at most, evenly. Raises UserError for files that are not there, and for a folder without any.
    """
    if given is None:
        return [epochs[at] for at in evenly_spread(MOST, len(epochs))]
    files = _there(given)
    if len(files) > 1 or not files[0].is_dir():
        return files
    return _weights_in(files[0])


def _there(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return paths as they were given. UserError for one that is not there, and for what is none."""
    if not isinstance(given, str | Path | list | tuple) or not given:
        raise UserError(f"diff: along: expected a folder or files, got {quoted(given)}.")
    places = [given] if isinstance(given, str | Path) else given
    files = [Path(place).expanduser() for place in places]
    if missing := [file for file in files if not file.exists()]:
        raise UserError(f"diff: along: {missing[0]}: there is no such file.")
    return files


def _weights_in(folder: Path) -> list[Path]:
    """Return the epochs that a run has kept in a folder, or its files of weights. UserError for none."""
    found = list(kept_epochs(folder)) or sorted(
        (file for file in folder.iterdir() if file.suffix in SUFFIXES), key=_by_numbers
    )
    if not found:
        raise UserError(
            f"diff: along: {folder} has no checkpoints/epoch_<number>.ckpt and no weights "
            f"({', '.join(SUFFIXES)}). mhprobe.train keeps its epochs with +callback=every_epoch."
        )
    return found


def _by_numbers(file: Path) -> list[tuple[int, str]]:
    """Sort key of a name, in which numbers count as numbers."""
    parts = re.split(r"(\d+)", file.stem)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def refuse_other_checkpoints(files: Sequence[Path], a: Opened, b: Opened) -> None:
    """Raise UserError for a checkpoint that cannot be compared with A and B.

    Each is opened again when it is measured, so that one is in memory at a time.
    """
    for file in files:
        _checkpoint(file, a, b)


def _checkpoint(file: Path, a: Opened, b: Opened) -> Torch:
    """Open a checkpoint by what it says of itself, or as weights of B. UserError for another architecture."""
    try:
        found = opened(file)
    except UserError:  # weights of another training say no architecture
        assert isinstance(b.side, Torch)
        model = copy.deepcopy(b.side.model)
        load_foreign(backbone_of(model), file, "diff: along")
        found = b._replace(side=Torch(model, file.stem))
    refuse_unlike_pair(a, found)
    side = same_ends(a, found)[1].side
    refuse_unlike(a.side, side)
    assert isinstance(side, Torch)
    return side


def course(
    files: Sequence[Path],
    a: Opened,
    b: Opened,
    folds: Folds,
    ends: tuple[Values, Values],
    itself: Mapping[str, Tensor],
) -> Course:
    """Measure the checkpoints between two networks. ends: the values of both. itself: of ``alike.Itself`` of both."""
    first = a.side
    assert isinstance(first, Torch)
    heads = first.layout.of("head").num_heads
    one = {f"svcca{end}": torch.ones(heads, dtype=torch.float64) for end in OF_ITSELF}
    alike: list[Mapping[str, Tensor]] = [one]
    values = {name: [value] for name, value in ends[0].items()}
    with progress("measuring along", len(files), "checkpoints", folds.show) as done:
        for file in files:
            side = _checkpoint(file, a, b)
            pairs = Pairs(paired(first, side, "head"), [])
            alike.append(likeness(first, side, pairs, folds.batches))
            taken = taken_of(first, side, pairs, folds._replace(show=False))
            values = {name: [*of, taken[name]] for name, of in values.items() if name in taken}
            done(1)
    alike.append(itself)
    found = dict[str, Tensor]()
    for name, of in values.items():
        middle, half = folds.mean(name, torch.stack([*of, ends[1][name]], 1))
        found[name] = torch.stack([middle, middle - half, middle + half])
    if all(alike):  # else the tokens are too few
        of_ends = [torch.stack([of[f"svcca{end}"] for of in alike]) for end in ENDS]
        found = {"svcca": torch.stack(of_ends), **found}
    return Course(("before", *_names(files), "after"), found)


def _names(files: Sequence[Path]) -> list[str]:
    """Names of files without their folders, where these tell them apart."""
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else ["/".join(f.parts[-2:]) for f in files]


def said(of: Course | None) -> Iterator[str]:
    """Yield a sentence on how far heads are from themselves before, point by point; none without a course."""
    if of is not None and "svcca" in of.curves:
        means = of.curves["svcca"][0].nanmean(1).tolist()
        told = [
            f"{mean:.2f} at {point}" for mean, point in zip(means[1:], of.points[1:], strict=True)
        ]
        yield (
            f"Over the training the outputs of a head are like those before (SVCCA, mean over "
            f"heads) by {', '.join(told)}."
        )
