"""python -m mhprobe.maps: where attention, its rollouts and relevance point in single images (no training)."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.maps.gallery import kept_maps
    from mhprobe.questions.plan import Question
    from mhprobe.run.construct import construct
    from mhprobe.run.questions import answer

    kinds = {name: construct(part, f"maps.{name}") for name, part in (cfg.maps or {}).items()}
    options = (
        {**scores.model_dump(), "seed": cfg.seed}
        if (scores := cfg.faithfulness)
        else {"score": False}
    )
    ask = functools.partial(kept_maps, folder=folder, chosen=cfg.images, kinds=kinds, **options)
    answer(cfg, folder, lambda *_: [Question("maps", ask)], tested=False)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("maps")
