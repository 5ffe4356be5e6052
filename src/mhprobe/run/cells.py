"""Cells of PruneBench: which to run, their files, and the tables and the figure of all."""

import hashlib
import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.io.code import our_digest, stands_on
from mhprobe.io.files import write
from mhprobe.io.tensors import BENCH, packed, unpacked
from mhprobe.questions.material import Material
from mhprobe.questions.plan import Question
from mhprobe.report.benches import RANKING, TABLE, ranked
from mhprobe.report.result import Result
from mhprobe.report.runs.facts import command
from mhprobe.report.tables import from_rows
from mhprobe.run import builders, pruning
from mhprobe.run.construct import construct
from mhprobe.run.questions import Asks
from mhprobe.run.resume import facts
from mhprobe.run.schema import Config, Prune
from mhprobe.stats.ranking import Cell
from mhprobe.surgery.bench import run_cell
from mhprobe.surgery.costs import device_name

log = logging.getLogger(__name__)

# options of mhprobe.prune that a bench fixes, among them all that choose units
ONE_WAY = {name: field.default for name, field in Prune.model_fields.items() if not field.is_required()}
ONE_WAY |= {"rounds": 1, "fold": "zero", "proj_bias": "keep", "elastic": False, "torch_export": False}


class Kept(NamedTuple):
    """A cell that was run. row: of the table, or the reason "failed". right: (N,) bool right test images, by stage."""

    row: dict[str, Any]
    right: dict[str, Tensor]


def refuse(cfg: Config) -> None:
    """Raise UserError for a budget out of range, an unknown method, and an option that a bench fixes."""
    for key in ("budgets", "methods", "seeds"):
        if getattr(cfg, key) == []:
            raise UserError(f"{key}: expected one at the least, got an empty list.")
    if wrong := [budget for budget in cfg.budgets if not 0 < budget < 1]:
        raise UserError(f"budgets: expected shares of the FLOPs between 0 and 1, got {wrong[0]}.")
    if unknown := [name for name in cfg.methods or () if name not in cfg.method]:
        raise UserError(f"methods: expected some of {', '.join(cfg.method)}, got {unknown[0]}.")
    for key, usual in ONE_WAY.items():
        if (got := getattr(cfg.prune, key)) != usual:
            raise UserError(f"prune.{key}: all cells have {str(usual).lower()}, got {quoted(got)}; use mhprobe.prune.")
    if cfg.prune and cfg.prune.onnx and not cfg.prune.speed:
        raise UserError("prune.onnx: cells are timed with ONNX Runtime, expected prune.speed=true beside it.")


def questions(cfg: Config, folder: Path) -> Asks:
    """Return the one question of mhprobe.prunebench. UserError for settings that it cannot follow."""
    refuse(cfg)

    def ask(material: Material) -> dict[str, Result]:
        about = {"images": material.data.images_of("test"), "network": material.identity["weights"]}
        cells = Cells(cfg, material)
        cells.run()
        there = cells.there()
        right = {f"{cell}/{stage}": of for cell, kept in there.items() if kept for stage, of in kept.right.items()}
        write(folder / BENCH, packed(right, about))
        if all(kept is None or "failed" in kept.row for kept in there.values()):
            reason = next(kept.row["failed"] for kept in there.values() if kept is not None)
            raise UserError(f"prunebench: no cell has a result to be compared; the first failed: {reason}")
        return results(command(cfg.command, folder), there)

    return lambda material, report: [Question("prunebench", ask)]


class Cells:
    """All methods at all budgets with all seeds of a configuration."""

    def __init__(self, cfg: Config, material: Material) -> None:
        model: Any = material.model
        self.cfg, self.material, self.description = cfg, material, model.description
        self.dense, self.layout = model.backbone.eval(), material.layout
        self.whole: Any = None  # of the dense network, once for all
        assert cfg.prune is not None, "a section of mhprobe.prunebench"
        self.settings: Prune = cfg.prune
        shared = facts(cfg, self.description, material.data.fingerprint)
        options = {"images", "select_on", "repair", "tune_epochs", "speed", "speed_rounds", "onnx"}
        shared |= {**cfg.prune.model_dump(include=options), "score": cfg.score, "source": our_digest()}
        shared |= {"machine": device_name(model.device)} if self.settings.speed else {}  # speed-ups are of one machine
        self.made_from: dict[Cell, str] = {}
        for seed, budget, (name, part) in itertools.product(cfg.seeds, cfg.budgets, cfg.method.items()):
            about = {**shared, "seed": seed, "method": part, "code": stands_on(part), "budget": budget}
            text = json.dumps(about, sort_keys=True, default=str)
            self.made_from[Cell(name, budget, seed)] = hashlib.sha256(text.encode()).hexdigest()[:16]

    def there(self) -> dict[Cell, Kept | None]:
        """Return all cells; None for those that were not run with these settings."""
        cells: dict[Cell, Kept | None] = dict.fromkeys(self.made_from)
        for cell, digest in self.made_from.items():
            if (stored := unpacked(self._file(cell))) is not None and stored[1].get("made_from") == digest:
                cells[cell] = Kept(json.loads(stored[1]["row"]), {stage: of.bool() for stage, of in stored[0].items()})
        return cells

    def run(self) -> None:
        """Run the chosen cells that were not run, or failed before."""
        for cell, kept in self.there().items():
            if cell.method in (self.cfg.methods or self.cfg.method) and (kept is None or "failed" in kept.row):
                log.info("%s ...", cell)
                try:
                    row, right, self.whole = self._run(cell)
                except Exception as error:  # one method, of another package perhaps, may not take down the others
                    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                    row, right = {"failed": f"{kind}{' '.join(str(error).split())}"[:300]}, {}
                level = logging.WARNING if "failed" in row else logging.INFO  # of which a run prints the first alone
                log.log(level, "%s: %s", cell, row.get("failed") or f"{100 * row[list(right)[-1]]:.2f} %")
                flags = {stage: flags.to("cpu", torch.uint8) for stage, flags in right.items()}
                write(self._file(cell), packed(flags, {"made_from": self.made_from[cell], "row": json.dumps(row)}))

    def _run(self, cell: Cell) -> tuple[dict[str, Any], dict[str, Tensor], Any]:
        cfg, settings = self.cfg.model_copy(update={"seed": cell.seed}), self.settings
        train = None
        if settings.tune_epochs:
            report = builders.report(cfg, self._file(cell).with_suffix(""), self.layout)
            train = pruning.retraining(cfg, settings, self.dense, self.description, self.material.data, report)
        return run_cell(
            cell,
            construct(cfg.method[cell.method], f"method.{cell.method}"),
            self.dense,
            pruning.images(cfg, settings, self.material),
            mend=pruning.repair(settings),
            train=train,
            rounds=settings.speed_rounds if settings.speed else 0,
            onnx=settings.onnx,
            whole=self.whole,
        )

    def _file(self, cell: Cell) -> Path:
        return Path(self.cfg.cells) / f"{cell}.safetensors"


def results(command: str, cells: Mapping[Cell, Kept | None]) -> dict[str, Result]:
    """Return the table of cells, the ranking, and accuracy against FLOPs and time. command: for missing cells."""
    rows = []
    for cell, kept in cells.items():
        missing = f"not run: {command} methods=[{cell.method}] budgets=[{cell.budget}] seeds=[{cell.seed}]"
        note = missing if kept is None else kept.row.get("failed", "")
        rows.append({**cell._asdict(), **(kept.row if kept is not None and not note else {}), "note": note})
    whole = Result(from_rows(rows), about="One row per method, budget (share of FLOPs) and seed.")
    tables = {TABLE: whole.saying("accuracy", "a better network")}
    if done := [row for row in rows if not row["note"]]:
        tables[RANKING] = ranked(done, {cell: kept.right for cell, kept in cells.items() if kept is not None})
    return tables
