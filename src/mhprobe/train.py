"""python -m mhprobe.train: fit, test with the best weights, probe and mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.session import Session

    session = Session("train", cfg, folder, measures=True, curves=True)
    session.fit()
    session.test(best=True)
    session.export()
    session.close()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("train")
