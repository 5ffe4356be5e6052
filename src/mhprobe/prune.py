"""python -m mhprobe.prune: remove heads from trained weights, and save the smaller network."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    """Prune as the checked configuration says, in one process."""
    from mhprobe.framework.run.pruning import Pruning
    from mhprobe.framework.run.questions import answer

    pruning = Pruning(cfg, folder)
    answer(cfg, folder, pruning.questions, tested=False)
    pruning.complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("prune")
