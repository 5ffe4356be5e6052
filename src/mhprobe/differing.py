"""mhprobe diff: what changed between two networks, head by head, and is it more than nothing.

mhprobe diff before.safetensors after.safetensors photos/
mhprobe diff model.safetensors model_int8.onnx photos/ --tolerance .01
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from mhprobe.errors import UserError
from mhprobe.io.options import Parser

TIMM = "for names of timm's, in their order: files of any training, or random (default: download)"


def main(arguments: list[str] | None = None) -> int:
    """Print the sentences and write the files; 1 if something leaves its tolerance, 2 for bad input."""
    try:
        options = _parsed(arguments)
        folder = Path(options.out).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UserError(f"diff: --out: {folder} is a file. Give a folder, e.g. diff.")
        from mhprobe.differences.result import tolerances
        from mhprobe.pages.diffing.changes import kinds_of

        limits = tolerances(options.tolerance)
        kinds_of(options.measures)
        from mhprobe.pages.diffing.opened import (
            exported,
            opened,
            pictures,
            refuse_unlike_pair,
        )
        from mhprobe.pages.diffing.page import diff

        warnings.filterwarnings("ignore", category=UserWarning, module="timm|torch")
        first, second = _sides(options, opened, exported)
        if not exported(second):
            refuse_unlike_pair(first, second)  # before the photographs are blamed
        read = pictures(
            options.photos,
            None,
            first.spec["size"],
            options.limit,
            _labelled(options, first),
            options.levels,
            len(first.spec["mean"]),
        )
        result = diff(
            first,
            second,
            read,
            tolerance=limits,
            null=options.null,
            ablation=options.ablation,
            measures=options.measures,
            along=options.along,
        )
        print(*result.notes, result, f"\nfiles: {result.save(folder)}", sep="\n")
    except UserError as error:
        print(f"mhprobe diff: {str(error).removeprefix('diff: ')}", file=sys.stderr)
        return 2
    return 1 if result.outside else 0


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="mhprobe diff",
        description="Two networks of one architecture: which block, head or neurons compute "
        "differently, what is inherited, and whether it is more than nothing.",
    )
    sides = "a run, a file or folder of weights, hf-hub:owner/name, or a name of timm's"
    parser.add_argument("a", metavar="A", help=f"the network before: {sides}")
    parser.add_argument("b", metavar="B", help="the network after: the same, or an ONNX file of A")
    parser.add_argument("photos", help="a folder of photographs, or a .tar or .zip of them")
    parser.add_argument("--weights", nargs="+", default=[], metavar="FILE", help=TIMM)
    parser.add_argument("--size", type=int, help="pixels of an image's side, for names of timm's")
    parser.add_argument(
        "--limit", type=int, default=64, help="photographs, evenly from the folder (default: 64)"
    )
    parser.add_argument(
        "--labelled",
        action="store_true",
        help="the folders that photographs stand in are the classes, by name",
    )
    parser.add_argument(
        "--classes",
        help="of --labelled: text, number, or a file of all names in the order of the logits (default: "
        "found)",
    )
    parser.add_readings()
    parser.add_argument(
        "--tolerance",
        nargs="+",
        metavar="SHARE",
        help="exit code 1 if an own error of a head or block, or with labels the loss of accuracy, "
        "is larger; or head=, block=, logits=, agreement=, accuracy=SHARE",
    )
    parser.add_argument(
        "--null",
        default="auto",
        help="what nothing looks like: rounding (exports, copies), images (trainings), or a network "
        "of another seed (default: by the weights)",
    )
    parser.add_argument(
        "--ablation",
        action="store_true",
        help="how much each head is missed in both networks, too; takes a pass per head",
    )
    parser.add_argument(
        "--measures",
        type=lambda text: text.split(","),
        metavar="NAMES",
        help="measures of heads before and after, as entropy,fisher (default: five, of trainings)",
    )
    parser.add_argument(
        "--along",
        nargs="+",
        metavar="FILE",
        help="checkpoints between A and B, in their order, or a folder of them, for the course of each "
        "head (default: the epochs that the run B has kept)",
    )
    parser.add_argument(
        "--out", default="diff", help="a folder for tables and diff.json (default: diff)"
    )
    return parser.parse_args(arguments)


def _labelled(options: argparse.Namespace, first: Any) -> Any:
    """Return how folders are read as classes; None where they are not. UserError for an order of none."""
    from mhprobe.pages.diffing.opened import Labelled

    if options.labelled:
        return Labelled(options.classes, first.class_names)
    if options.classes is not None:
        raise UserError("diff: --classes: is the order of --labelled, which is not given.")
    return None


def _sides(options: argparse.Namespace, opened: Any, exported: Any) -> list[Any]:
    """Open both networks, but for an export; names of timm's take ``--weights`` in their order."""
    weights = list(options.weights)
    named = [not Path(name).expanduser().exists() for name in (options.a, options.b)]
    if len(weights) > sum(named):
        raise UserError(
            f"diff: --weights: {len(weights)} files for {sum(named)} names of timm's; files and runs "
            "bring their own."
        )
    if options.size is not None and not any(named):
        raise UserError("diff: --size is for names of timm's; files and runs bring their own.")
    from mhprobe.pages.looking.network import Asked

    own = Asked(options.mean, options.std)
    foreign = Asked(options.mean, options.std, options.prefix, options.leave_out)
    if not weights and (options.prefix is not None or options.leave_out):
        raise UserError("diff: --prefix and --leave-out are for files that --weights names.")
    sides: list[Any] = []
    for name, timm in zip((options.a, options.b), named, strict=True):
        if sides and exported(name):
            sides.append(name)
        elif timm:
            file = weights.pop(0) if weights else None
            asked = own if file in (None, "random") else foreign
            sides.append(opened(name, file, options.size, asked=asked))
        else:
            sides.append(opened(name, asked=own))
    return sides


if __name__ == "__main__":
    sys.exit(main())
