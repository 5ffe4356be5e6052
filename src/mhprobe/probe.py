"""python -m mhprobe.probe: what the heads of trained weights do (no training)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.run.construct import keyed
    from mhprobe.framework.run.questions import answer

    with keyed(cfg.measure or {}, "measure"):
        answer(cfg, folder).complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("probe")
