"""python -m mhprobe.claims: which findings of the literature hold for trained weights (no training)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.claims.parts.asking import AsksClaims
    from mhprobe.claims.parts.claim import chosen
    from mhprobe.claims.parts.measured import Measured
    from mhprobe.run import builders
    from mhprobe.run.construct import construct

    claims, parts = chosen(cfg["claims"]), cfg["evidence"]
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    layout = model.gates.layout
    report = builders.report(cfg, folder, layout)
    evidence = functools.partial(
        Measured,
        measures=builders.measures(parts["measure"], layout, "evidence.measure"),
        options=parts["measure"],
        wanted=list(dict.fromkeys(name for claim in claims.values() for name in claim.measures)),
        specs=builders.curve_specs(parts["masking"], layout),
        maps={name: construct(part, f"evidence.maps.{name}") for name, part in parts["maps"].items()},
        of_maps=parts["images_of_maps"],
        folder=folder / "measured",
        cache=Path(cfg["cache_dir"]) / "orders",
        control=builders.control(model, cfg["seed"]) if cfg["control"] else None,
        of_control=parts["images_of_control"],
    )
    asks = AsksClaims(claims, evidence, report)
    trainer = builders.trainer(cfg, [asks], report)
    builders.test(trainer, model, data, report)
    builders.finish(cfg, trainer, model, data, report)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("claims")
