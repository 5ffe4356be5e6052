"""Which operations, and which tables, differ when the same command runs twice: python tools/determinism.py.

By default probe (three measures) and mask, on a tiny network with random weights, on the device
that Lightning chooses. torch names the operations that have no deterministic form there; the tables
are compared byte for byte. On a CPU both lists are empty. Exit code 1 if a table differs.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from soak import MEASURES, TINY, run

COMMANDS = {"probe": (MEASURES,), "mask": ()}


def twice(command: str, folder: Path) -> tuple[set[str], list[str]]:
    """The operations that torch complains about, and the tables of two runs that are not the same bytes."""
    device = tuple(part for part in TINY if not part.startswith("trainer.accelerator"))
    operations = set()
    for name in ("one", "two"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(command, folder / name, "weights=random", *COMMANDS[command], base=device)
        messages = [
            str(warning.message) for warning in caught if "deterministic" in str(warning.message)
        ]
        operations |= {text.split(" does not have")[0] for text in messages}
    first, second = (
        {path.name: path.read_bytes() for path in (folder / name / command / "tables").iterdir()}
        for name in ("one", "two")
    )
    return operations, sorted(
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    )


def main(commands: list[str]) -> int:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    differs = False
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            operations, tables = twice(command, Path(folder))
        print(
            f"{command}: operations without a deterministic form: "
            f"{', '.join(sorted(operations)) or 'none'}"
        )
        print(f"{command}: tables that differ: {', '.join(tables) or 'none'}")
        differs |= bool(tables)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*COMMANDS]))
