"""python -m mhprobe.weights FILE.json ...: check what each describes, and add the digest that older ones lack."""

import argparse
import sys
from pathlib import Path

from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.io.streams import outlive_readers
from mhprobe.weights.checkpoint import as_json, load_weights


def sign(path: Path) -> str:
    """Load the pair that ``path`` (its JSON or its tensors) belongs to, and write the JSON again; says what it did."""
    _, description = load_weights(path.with_suffix(".safetensors"))
    write(path.with_suffix(".json"), as_json(description))
    return f"{path.with_suffix('.json')}: whole, with its digest"


def main() -> int:
    """Prints a line per file; a mistake in one line, exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.weights", description=__doc__.partition(": ")[2])
    parser.add_argument("files", nargs="+", metavar="FILE.json", type=Path, help="describes weights, or holds them")
    try:
        for path in parser.parse_args().files:
            print(sign(path))
    except UserError as error:
        print(f"mhprobe: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())
