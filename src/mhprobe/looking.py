"""mhprobe look: from a network and a folder of photographs to a page that answers clicks.

mhprobe look vit_small_patch14_dinov2 photos/ --weights dino.safetensors
mhprobe look outputs/demo/2026-11-23_12-00-00 photos/
"""

import sys
import warnings
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhprobe.errors import UserError
from mhprobe.io.options import Parser

if TYPE_CHECKING:
    from mhprobe.pages.looking.page import Look


def _parsed(arguments: list[str] | None) -> dict[str, Any]:
    parser = Parser(
        prog="mhprobe look",
        description="One page: click a patch, see where all heads look from there; and sentences on what heads do.",
    )
    parser.add_argument(
        "model", help="a run, a file or folder of weights, hf-hub:owner/name, or a name of timm's"
    )
    parser.add_argument(
        "folder", metavar="photos", help="a folder of photographs, or a .tar or .zip of them"
    )
    parser.add_argument(
        "--weights",
        help="for a name of timm's: a file of any training, or random (default: download)",
    )
    parser.add_argument(
        "--size", type=int, help="pixels of an image's side (default: the network's, or 224)"
    )
    parser.add_argument(
        "--limit", type=int, default=12, help="photographs, evenly from the folder (default: 12)"
    )
    parser.add_argument(
        "--masks", dest="masks_in", help="a folder of masks of the same names, bright on objects"
    )
    parser.add_readings()
    parser.add_argument(
        "--no-untrained",
        dest="untrained",
        action="store_false",
        help="look at no untrained network",
    )
    parser.add_argument("--out", default="look.html", help="the page (default: look.html)")
    parser.add_argument(
        "--open", action="store_true", help="open it in the browser, as soon as it shows something"
    )
    return vars(parser.parse_args(arguments))


def main(arguments: list[str] | None = None) -> int:
    try:
        options = _parsed(arguments)
        page = Path(options.pop("out")).expanduser()
        in_browser = options.pop("open")

        def first(begun: "Look") -> None:
            begun.save(page)
            print(f"first photograph: {page.resolve().as_uri()}", flush=True)
            if in_browser:
                webbrowser.open(page.resolve().as_uri())

        if page.is_dir() or not page.parent.is_dir():
            raise UserError(
                f"look: --out: {page} is a folder, or in none. Give a file, e.g. look.html."
            )
        if page.suffix not in (".html", ".htm"):
            raise UserError(
                f"look: --out: expected a name that ends in .html, which browsers show as a page, "
                f"got {page}. Give e.g. {page}.html."
            )
        from mhprobe.pages.looking.page import look  # torch takes seconds, --help none

        warnings.filterwarnings("ignore", category=UserWarning, module="timm|torch")
        result = look(**options, first=first)
        print(
            *result.notes, result, f"\nthe page: {result.save(page).resolve().as_uri()}", sep="\n"
        )
    except UserError as error:
        print(f"mhprobe look: {str(error).removeprefix('look: ')}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
