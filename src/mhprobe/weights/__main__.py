"""python -m mhprobe.weights FILE.json ...: check what each describes, and add the digest that older ones lack."""

from __future__ import annotations

import sys
from pathlib import Path

from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.weights.checkpoint import as_json, load_weights


def sign(path: Path) -> str:
    """Load the pair that ``path`` (its JSON or its tensors) belongs to, and write the JSON again; says what it did."""
    _, description = load_weights(path.with_suffix(".safetensors"))
    write(path.with_suffix(".json"), as_json(description))
    return f"{path.with_suffix('.json')}: whole, with its digest"


if __name__ == "__main__":
    try:
        for name in sys.argv[1:] or sys.exit("usage: python -m mhprobe.weights FILE.json ..."):
            print(sign(Path(name)))
    except UserError as error:
        sys.exit(f"mhprobe: {error}")
