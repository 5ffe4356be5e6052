"""python -m mhprobe.probe: what the heads of trained weights do (no training)."""

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.questions import answer

    answer(cfg, folder).complain()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("probe")
