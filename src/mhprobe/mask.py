"""python -m mhprobe.mask: the masking curves of trained weights (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.session import Session

    session = Session("mask", cfg, folder, curves=True)
    session.test()
    session.close()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("mask")
