"""python -m mhprobe.maps: where attention, its rollouts and relevance point in single images (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.maps.gallery import hang
    from mhprobe.run.session import Session

    session = Session("maps", cfg, folder)
    kinds = {name: session.make(part, f"maps.{name}") for name, part in (cfg["maps"] or {}).items()}
    if session.trainer.is_global_zero:  # a few images are no work to share
        model = session.classifier.backbone.to(session.trainer.strategy.root_device)
        hang(session.report, model, session.data, cfg["images"], kinds, **cfg["faithfulness"], seed=cfg["seed"])


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("maps.__main__")
