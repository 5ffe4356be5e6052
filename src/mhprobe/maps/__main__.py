"""python -m mhprobe.maps: where attention, its rollouts and relevance point in single images (no training)."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.questions.gallery import kept_maps
    from mhprobe.framework.questions.plan import Question
    from mhprobe.framework.run.construct import construct
    from mhprobe.framework.run.questions import answer

    kinds = {name: construct(part, f"maps.{name}") for name, part in (cfg.maps or {}).items()}
    options = (
        {**scores.model_dump(), "seed": cfg.seed}
        if (scores := cfg.faithfulness)
        else {"score": False}
    )
    ask = functools.partial(kept_maps, folder=folder, chosen=cfg.images, kinds=kinds, **options)
    answer(cfg, folder, lambda *_: [Question("maps", ask)], tested=False)


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("maps")
