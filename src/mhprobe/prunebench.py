"""python -m mhprobe.prunebench: methods of pruning beside each other on one network, at equal FLOPs, over seeds.

One cell is a method at a budget with a seed. Each is a small file below ``cells``, so that a bench goes on where it
stopped, and jobs of a sweep share what they did. A cell that fails costs itself, and the table says why. A cell that
was not run has its command there.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself; ``cfg`` is composed and checked."""
    import torch

    from mhprobe.io.files import write
    from mhprobe.io.tensors import packed
    from mhprobe.report.html import finish_report
    from mhprobe.report.summary import show
    from mhprobe.run import builders, pruning
    from mhprobe.run.construct import construct
    from mhprobe.run.fingerprint import facts
    from mhprobe.run.questions import score
    from mhprobe.surgery.bench import Cell, run_cell
    from mhprobe.surgery.pruning import Images

    _check(cfg)
    settings, place = cfg["prune"], Path(cfg["cells"])
    data = builders.data(cfg)
    model = builders.classifier(cfg, data)
    report = builders.report(cfg, folder, model.gates.layout)
    device = pruning.one_process(builders.trainer(cfg, [], report))
    dense, about = model.to(device).backbone.eval(), model.description
    shared = {
        **facts(cfg, about, data.fingerprint),
        **{key: settings[key] for key in ("images", "select_on", "repair", "tune_epochs")},
    }
    mend = None if settings["repair"]["per"] == "none" else settings["repair"]
    asked = [
        (Cell(name, budget, seed), _digest(shared, part, budget, seed))
        for seed in cfg["seeds"]
        for budget in cfg["budgets"]
        for name, part in cfg["method"].items()
    ]
    whole = None  # of the dense network, once for all
    for cell, made_from in asked:
        file = place / f"{cell}.safetensors"
        kept = _kept(file, made_from)
        if cell.method not in (cfg["methods"] or cfg["method"]) or (kept is not None and "failed" not in kept[0]):
            continue
        log.info("%s ...", cell)
        own = {**cfg, "seed": cell.seed}
        try:
            method = construct(cfg["method"][cell.method], f"method.{cell.method}")
            images = Images(data, device, settings["select_on"], settings["images"], cell.seed, score(cfg))
            train = None
            if settings["tune_epochs"]:
                tuning = builders.report(own, place / str(cell), model.gates.layout)
                train = pruning.retraining(own, dense, about, data, tuning)
            rounds = settings["speed_rounds"] if settings["speed"] else 0
            options = {"mend": mend, "train": train, "rounds": rounds, "onnx": settings["onnx"], "whole": whole}
            row, right, whole = run_cell(cell, method, dense, images, **options)
        except Exception as error:  # one method of another package may not take down the others
            row, right = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}, {}
        log.info("%s: %s", cell, row.get("failed") or f"{100 * row[list(right)[-1]]:.2f} %")
        flags = {stage: flags.to("cpu", torch.uint8) for stage, flags in right.items()}
        write(file, packed(flags, {"made_from": made_from, "row": json.dumps(row)}))
    report.add_all(_results(cfg, {cell: _kept(place / f"{cell}.safetensors", digest) for cell, digest in asked}))
    finish_report(folder, cfg["command"], model.gates.layout.of("head"), about)
    report.close()
    show(folder)


def _check(cfg: Mapping[str, Any]) -> None:
    """UserError for a budget out of range, and for a method that there is not."""
    from mhprobe.errors import UserError

    if wrong := [budget for budget in cfg["budgets"] if not 0 < budget < 1]:
        raise UserError(f"budgets: expected shares of the FLOPs between 0 and 1, got {wrong[0]}.")
    if unknown := [name for name in cfg["methods"] or () if name not in cfg["method"]]:
        raise UserError(f"methods: expected some of {', '.join(cfg['method'])}, got {unknown[0]}.")


def _digest(shared: Mapping[str, Any], method: Any, budget: float, seed: int) -> str:
    """Sixteen digits that name everything that makes the numbers of a cell."""
    facts = json.dumps([{**shared, "seed": seed}, method, budget], sort_keys=True, default=str)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _kept(file: Path, made_from: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The row of a cell, and by stage (N,) which test images are right; None if it was not run with these settings."""
    from mhprobe.io.tensors import unpacked

    found = unpacked(file)
    if found is None or found[1].get("made_from") != made_from:
        return None
    return json.loads(found[1]["row"]), {stage: flags.bool() for stage, flags in found[0].items()}


def _results(
    cfg: Mapping[str, Any], kept: Mapping[Any, tuple[dict[str, Any], dict[str, Any]] | None]
) -> dict[str, Any]:
    """The table of cells, the ranking, and accuracy against FLOPs and against measured time."""
    from mhprobe.report.figures import pareto
    from mhprobe.report.report import Result
    from mhprobe.surgery.bench import ranking

    rows = []
    for cell, found in kept.items():
        note = "" if found is None else found[0].get("failed", "")
        if found is None:
            note = (
                f"not run: python -m mhprobe.prunebench weights={cfg['weights']} methods=[{cell.method}] "
                f"budgets=[{cell.budget:g}] seeds=[{cell.seed}]"
            )
        rows.append({**cell._asdict(), **({} if found is None or note else found[0]), "note": note})
    done = [row for row in rows if not row["note"]]
    results = {"prunebench": Result(_table(rows), about="One row per method, budget (share of FLOPs) and seed.")}
    if done:
        ranked = ranking(done, {cell: found[1] for cell, found in kept.items() if found is not None})
        results["prunebench_ranking"] = Result(_table(ranked), pareto.draw(done), label="accuracy", drawn="pareto")
    return results


def _table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Table of all that a row says; "" where another does not."""
    from mhprobe.report.tables import Table

    columns = list(dict.fromkeys(key for row in sorted(rows, key=len, reverse=True) for key in row))
    return Table(columns, [[row.get(key, "") for key in columns] for row in rows])


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("prunebench")
