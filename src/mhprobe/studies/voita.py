"""python -m mhprobe.studies.voita: heads pruned from trained weights, against the same heads trained from scratch.

Voita et al., 2019, Table 2: is it the architecture that remains, or what was learned before pruning? For every
number of heads: gates are learned from ``weights`` until so many are open (gates=hard_concrete_target); then a model
with those heads alone, all its weights new, is trained for as many epochs as weights and gates took together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mhprobe.errors import UserError


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.report import tables
    from mhprobe.report.figures import style, voita
    from mhprobe.run.session import Session
    from mhprobe.weights.checkpoint import load_weights

    options = cfg["voita"]
    if not cfg["weights"]:
        raise UserError("voita: weights=<file> is what is pruned: the model.safetensors of a training run.")
    if "heads" not in (cfg["gates"]["penalty"] or {}):
        raise UserError("voita: it needs gates that arrive at a number of heads: gates=hard_concrete_target.")
    _, description = load_weights(cfg["weights"])
    before = description.get("made", {}).get("epochs")
    if before is None and options["scratch_epochs"] is None:
        raise UserError(f"voita.scratch_epochs: {cfg['weights']} does not say how long it was trained; give a number.")
    epochs = options["scratch_epochs"] or before + cfg["trainer"]["max_epochs"]

    whole = Session("voita", cfg, folder / "whole")
    whole.test()
    whole.report.close()
    heads = whole.classifier.gates.layout.num_heads
    sizes = options["heads"] or [round(heads * share) for share in (0.75, 0.5, 0.25)]
    main = whole.trainer.is_global_zero
    rows: list[list[Any]] = [[heads, *[whole.classifier.results["test/accuracy"]] * 3, before or "", before or ""]]
    for size in sizes:
        here = {name: folder / f"heads_{size}_{name}" for name in ("pruned", "scratch")}
        for name, job in {
            "pruned": _pruned(cfg, size),
            "scratch": _scratch(cfg, description, here["pruned"] / "tables" / "gates.csv", epochs, options),
        }.items():
            session = Session("train", job, here[name])
            session.fit()
            session.test(best=True)
            session.export()
            session.report.close()
            session.trainer.strategy.barrier()  # the other ranks read what the first has written
        learned, scratch = (json.loads((here[name] / "metrics.json").read_text()) for name in ("pruned", "scratch"))
        rows.append(
            [
                size,
                learned["gates/binary_accuracy"],
                learned["test/accuracy"],
                scratch["test/accuracy"],
                (before or 0) + cfg["trainer"]["max_epochs"],
                epochs,
            ]
        )
    if main:
        columns = ["heads", "pruned", "pruned_gates_as_learned", "scratch", "pruned_epochs", "scratch_epochs"]
        images = whole.data.sizes["test"]
        tables.write_csv(
            folder / "tables" / "voita.csv", tables.Table([*columns, "images"], [[*r, images] for r in rows])
        )
        style.save(
            voita.draw([(r[0], r[1], r[3]) for r in rows], images, 1 / whole.data.num_classes),
            folder / "figures" / "voita",
        )
        for size, pruned, _, scratch, *_ in rows:
            print(f"{size} of {heads} heads: pruned {100 * pruned:.2f} %, from scratch {100 * scratch:.2f} %")
        print(f"tables and figures: {folder}")


def _pruned(cfg: dict[str, Any], heads: int) -> dict[str, Any]:
    gates = cfg["gates"]
    return {**cfg, "gates": {**gates, "penalty": {**gates["penalty"], "heads": heads}, "keep": heads}}


def _scratch(
    cfg: dict[str, Any], description: dict[str, Any], kept: Path, epochs: int, options: dict[str, Any]
) -> dict[str, Any]:
    """New weights, the same backbone, and the heads that ``kept`` leaves."""
    fixed = {"relaxation": {"_target_": "mhprobe.gates.HeadGates", "_partial_": True}, "penalty": None}
    return {
        **cfg,
        "weights": None,
        "backbone": {**description["backbone"], "_target_": "mhprobe.backbones.build", "pretrained": False},
        "gates": {**cfg["gates"], **fixed, "frozen": "nothing", "keep": None, "mask": str(kept)},
        "trainer": {**cfg["trainer"], "max_epochs": epochs},
        "optim": {**cfg["optim"], **options["scratch_optim"]},
    }


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("studies.voita")
