"""python -m mhprobe.prune: remove heads from trained weights, and save the smaller network."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    from mhprobe.report.html import finish_report
    from mhprobe.report.summary import show
    from mhprobe.run import builders
    from mhprobe.run.construct import construct
    from mhprobe.run.pruning import one_process, refuse, retraining, run_pruning, source_of
    from mhprobe.surgery.pruning import Images
    from mhprobe.weights.checkpoint import gates_kept, load_weights

    refuse(cfg)
    settings = cfg["prune"]
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    device = one_process(builders.trainer(cfg, [], report))
    dense = model.to(device).backbone.eval()
    order = None if settings["order"] is None else construct(settings["order"], "prune.order")
    run_pruning(
        settings,
        dense,
        Images(data, device, settings["select_on"], settings["images"], cfg["seed"]),
        report,
        source_of(settings, order),
        model.description,
        train=retraining(cfg, dense, model.description, data, report) if settings["tune_epochs"] else None,
        kept=gates_kept(load_weights(cfg["weights"])[1]) if builders.has_weights(cfg) else None,
        made={"by": "mhprobe.prune", "from": cfg["weights"], "data": data.fingerprint, "seed": cfg["seed"]},
    )
    finish_report(folder, cfg["command"], model.gates.layout)
    report.close()
    show(folder)


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prune")
