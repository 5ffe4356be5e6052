"""python -m mhprobe.mask: the masking curves of trained weights (no training)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.questions import answer

    answer(cfg, folder).complain()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("mask")
