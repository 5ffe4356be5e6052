"""python -m mhprobe.prune: remove heads from trained weights, and save the smaller network."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    from mhprobe.run.pruning import Pruning, refuse
    from mhprobe.run.session import Session

    refuse(cfg)
    session = Session("prune", cfg, folder)
    pruning = Pruning(session)
    pruning.remove()
    pruning.save()
    pruning.report()
    session.close()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prune")
