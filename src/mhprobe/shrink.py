"""python -m mhprobe.shrink: a smaller, faster network in one command, and a page on what that cost.

mhprobe shrink weights/cifar10_vit_dinov2.safetensors --flops 0.5 --data cifar10.tar.gz
mhprobe shrink outputs/mine/2026-11-23_12-00-00 --latency 0.5 --data photos/ --labels none
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from mhprobe.errors import UserError
from mhprobe.io.options import Parser

UNITS = {
    "flops": "FLOPs",
    "params": "parameters",
    "latency": "time of a forward pass, as measured here",
}

if TYPE_CHECKING:
    from mhprobe.pages.shrinking.images import AskedImages


def parser() -> Parser:
    made = Parser(
        prog="mhprobe shrink",
        description="Take heads and neurons out of trained weights, repair, check, time, and write the "
        "smaller network. Give one of --flops, --params and --latency.",
    )
    made.add_argument(
        "weights",
        help="a .safetensors beside its .json, a .ckpt, a run's folder, or hf-hub:owner/name",
    )
    for unit, what in UNITS.items():
        made.add_argument(
            f"--{unit}", metavar="SHARE", help=f"share of the {what} that may be left, e.g. 0.5"
        )
    made.add_argument(
        "--data",
        help="a folder or archive of train/<class>/* and test/<class>/*, of photographs with --labels none, "
        "or digits or scenes (default: the data set that the weights name)",
    )
    made.add_argument(
        "--labels",
        default="folders",
        help="folders: the classes are folders' names; none: the whole network's answers stand in for labels",
    )
    made.add_argument(
        "--classes",
        help="order of class folders in training: text, number, or a file of names (default: found)",
    )
    made.add_reading("--levels")
    made.add_argument(
        "--images", default="2000", help="training images that choose and repair (default: 2000)"
    )
    made.add_argument(
        "--test-images",
        default="2000",
        help="images that judge; more make the interval narrower (default: 2000)",
    )
    made.add_argument(
        "--seed", default="0", help="of the images, and of the random heads (default: 0)"
    )
    made.add_argument("--cache", default=".cache/mhprobe", help="folder of decoded images")
    made.add_argument(
        "--out", help="folder for the results, not there yet (default: <weights>_<target>)"
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
        unit, share = target_of(options)
        name = Path(options.weights.rpartition("/")[2]).stem
        out = Path(options.out or f"{name}_{unit}_{share:g}").expanduser()
        print(
            f"mhprobe shrink: {options.weights} to {share:g} of its {UNITS[unit]}, into {out}",
            flush=True,
        )
        return _run(options, unit, share, out)
    except UserError as error:
        print(f"mhprobe shrink: {str(error).removeprefix('shrink: ')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mhprobe shrink: stopped; nothing was written.", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace, unit: str, share: float, out: Path) -> int:
    from mhprobe.io.progress import screen
    from mhprobe.pages.shrinking.images import (  # torch takes seconds, --help none
        read_images,
        refuse_asked,
    )
    from mhprobe.pages.shrinking.page import PAGE, refuse_folder, write_folder
    from mhprobe.pages.shrinking.recipe import ShareLeft, open_network, refuse_target, shrink
    from mhprobe.pages.shrinking.sentences import told, tuning, what_it_took

    warnings.filterwarnings("ignore", category=UserWarning, module="timm|torch")
    asked, target = asked_of(options), ShareLeft(unit, share)
    refuse_folder(out)
    refuse_asked(asked, options.weights)
    with screen("mhprobe shrink"):
        network = open_network(options.weights)
        refuse_target(network, target)
        data = read_images(asked, network.description, options.cache)
        shrunk = shrink(network, data, target, asked.seed)
        write_folder(shrunk, out)
    command = tuning(shrunk, out.resolve())
    following = f"\nto tune it:\n{command}" if command else ""
    page = (out / PAGE).resolve().as_uri()
    print("", *told(shrunk), "", *what_it_took(shrunk), following, f"\nthe page: {page}", sep="\n")
    return 0


def target_of(options: argparse.Namespace) -> tuple[str, float]:
    """Return the unit and the share of the one target. UserError for none, two, and a share outside 0 to 1."""
    given = {unit: getattr(options, unit) for unit in UNITS if getattr(options, unit) is not None}
    every = ", ".join(f"--{unit}" for unit in UNITS)
    if len(given) != 1:
        got = " and ".join(f"--{unit} {text}" for unit, text in given.items()) or "none"
        raise UserError(f"expected one target of {every}, got {got}. E.g. --flops 0.5.")
    ((unit, text),) = given.items()
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(
            f"--{unit}: expected the share that may be left, above 0 and below 1, got {text}. "
            f"E.g. --{unit} 0.5."
        )
    return unit, share


def asked_of(options: argparse.Namespace) -> "AskedImages":
    """Return the images that are asked for. UserError for what is no number, and unknown labels."""
    from mhprobe.pages.shrinking.images import AskedImages

    if options.labels not in ("folders", "none"):
        raise UserError(f"--labels: expected folders or none, got {options.labels}.")
    whole = []
    for option in ("images", "test_images", "seed"):
        text = getattr(options, option)
        if not text.isdecimal():
            name = option.replace("_", "-")
            raise UserError(f"--{name}: expected a whole number, got {text}.")
        whole.append(int(text))
    choose, judge, seed = whole
    read = {"classes": options.classes, "levels": options.levels}
    return AskedImages(options.data, options.labels, choose, judge, seed, **read)


if __name__ == "__main__":
    sys.exit(main())
