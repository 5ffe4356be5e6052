"""Cells of PruneBench: which to run, their files, and the tables and the figure of all."""

import contextlib
import hashlib
import itertools
import json
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import filelock
from torch import Tensor

from mhprobe.data.base import SPLITS
from mhprobe.errors import UserError, quoted, refusing
from mhprobe.framework.questions.material import Material
from mhprobe.framework.questions.plan import Question
from mhprobe.framework.run import devices, pruning, trainers
from mhprobe.framework.run.construct import construct
from mhprobe.framework.run.questions import Asks
from mhprobe.framework.run.resume import facts_of_run
from mhprobe.framework.run.schema import Config, Prune
from mhprobe.io.code import our_digest, stands_on
from mhprobe.io.files import write
from mhprobe.io.tensors import BENCH, packed, unpacked
from mhprobe.lab.prunebench.bench import run_cell
from mhprobe.pages.benches import RANKING, TABLE, ranked
from mhprobe.pruning.rounds import Removal
from mhprobe.report.result import Result, Sample
from mhprobe.report.runs.facts import command
from mhprobe.report.tables import from_rows
from mhprobe.stats.ranking import Cell
from mhprobe.surgery.costs import device_name

log = logging.getLogger(__name__)

# options of mhprobe.prune that a bench fixes, among them all that choose units
ONE_WAY = {
    name: field.default for name, field in Prune.model_fields.items() if not field.is_required()
}
ONE_WAY |= {
    "rounds": 1,
    "fold": "zero",
    "proj_bias": "keep",
    "elastic": False,
    "torch_export": False,
}


class Kept(NamedTuple):
    """A cell that was run.

    row: of the table; its note says why it failed. right: (N,) bool right images, by stage.
    """

    row: dict[str, Any]
    right: dict[str, Tensor]


def refuse_cells(cfg: Config) -> None:
    """Raise UserError for a budget out of range or twice, an unknown method, and an option that a bench fixes."""
    for key in ("budgets", "methods", "seeds"):
        if (wanted := getattr(cfg, key)) is not None and not 0 < len(wanted) == len({*wanted}):
            raise UserError(
                f"{key}: expected one at the least, and each once, got {quoted(wanted)}."
            )
    if wrong := [budget for budget in cfg.budgets if not 0 < budget < 1]:
        raise UserError(f"budgets: expected shares of the FLOPs between 0 and 1, got {wrong[0]}.")
    if unknown := [name for name in cfg.methods or () if name not in cfg.method]:
        raise UserError(f"methods: expected some of {', '.join(cfg.method)}, got {unknown[0]}.")
    for key, usual in ONE_WAY.items():
        if (got := getattr(cfg.prune, key)) != usual:
            raise UserError(
                f"prune.{key}: all cells have {str(usual).lower()}, got {quoted(got)}; use "
                "mhprobe.prune."
            )
    if cfg.prune and cfg.prune.onnx and not cfg.prune.speed:
        raise UserError(
            "prune.onnx: cells are timed with ONNX Runtime, expected prune.speed=true beside it."
        )


def question_of_cells(cfg: Config, folder: Path) -> Asks:
    """Return the one question of mhprobe.prunebench.

    UserError for settings that it cannot follow.
    """
    refuse_cells(cfg)

    def ask(material: Material) -> dict[str, Result]:
        about = {"images": material.data.images_of("test"), "network": material.identity["weights"]}
        there = Cells(cfg, material).run()
        right = {
            f"{cell}/{stage}": of
            for cell, kept in there.items()
            if kept
            for stage, of in kept.right.items()
        }
        write(folder / BENCH, packed(right, about))
        if not right:
            reason = next(kept.row["note"] for kept in there.values() if kept)
            raise UserError(
                f"prunebench: no cell has a result to be compared; the first failed: {reason}"
            )
        return results(command(cfg.command, folder), there)

    return lambda material, report: [Question("prunebench", ask)]


class Cells:
    """All methods at all budgets with all seeds of a configuration."""

    def __init__(self, cfg: Config, material: Material) -> None:
        assert cfg.prune is not None, "a section of mhprobe.prunebench"
        self.cfg, self.settings, self.material, self.model = (
            cfg,
            cfg.prune,
            material,
            cast(Any, material.model),
        )
        self.whole: Any = None  # of the dense network, once for all
        looked_at = {SPLITS[cfg.prune.select_on], "test"}
        looked_at |= {"train", "val"} if cfg.prune.tune_epochs else set()
        images = f"{material.data.fingerprint} {material.data.images_of(*sorted(looked_at))}"
        shared = facts_of_run(cfg, self.model.description, images)
        options = {
            "images",
            "select_on",
            "precision",
            "repair",
            "tune_epochs",
            "speed",
            "speed_rounds",
            "onnx",
        }
        shared |= {
            **cfg.prune.model_dump(include=options),
            "score": cfg.score,
            "source": our_digest(),
        }
        shared["tuned"] = devices.choose_precision(cfg) if cfg.prune.tune_epochs else None
        shared["machine"] = (
            device_name(self.model.device) if cfg.prune.speed else None
        )  # speed-ups are of one machine
        self.files: dict[
            Cell, Path
        ] = {}  # other settings have other files, so jobs with either can share a folder
        for seed, budget, (name, part) in itertools.product(
            cfg.seeds, cfg.budgets, cfg.method.items()
        ):
            about = {
                **shared,
                "seed": seed,
                "method": part,
                "code": stands_on(part),
                "budget": budget,
            }
            digest = hashlib.sha256(
                json.dumps(about, sort_keys=True, default=str).encode()
            ).hexdigest()[:16]
            cell = Cell(name, budget, seed)
            self.files[cell] = Path(cfg.cells) / f"{cell}_{digest}.safetensors"

    def there(self, cell: Cell) -> Kept | None:
        """Return a cell; None if it was not run with these settings."""
        stored = unpacked(self.files[cell])
        return None if stored is None else Kept(json.loads(stored[1]["row"]), stored[0])

    def run(self) -> dict[Cell, Kept | None]:
        """Run the chosen cells that were not run, or failed before, and wait for those of other jobs; return all."""
        chosen = [
            cell for cell in self.files if cell.method in (self.cfg.methods or self.cfg.method)
        ]
        left = {
            cell: self._written(cell)
            for cell in chosen
            if not ((kept := self.there(cell)) and kept.right)
        }
        where = f"cells: {self.cfg.cells} cannot be written"
        with refusing(
            lambda error: f"{where} ({error}). Choose another folder with cells=<folder>.",
            (OSError,),
        ):
            for seconds in (0, -1):  # at last wait for what other jobs run
                if seconds and left:
                    log.warning(
                        "other jobs run what is left; waiting for %s", ", ".join(map(str, left))
                    )
                for cell, before in [*left.items()]:
                    claim = self.files[cell].with_suffix(
                        ".lock"
                    )  # no longer locked when its process has died
                    with contextlib.suppress(filelock.Timeout), filelock.FileLock(claim, seconds):
                        if (
                            self._written(cell) == before
                        ):  # no other job has run it since, or failed to
                            self._run(cell)
                        del left[cell]
                        claim.unlink(missing_ok=True)
        return {cell: self.there(cell) for cell in self.files}

    def _written(self, cell: Cell) -> int | None:
        """Time at which the cell's file was written; None without one."""
        return file.stat().st_mtime_ns if (file := self.files[cell]).exists() else None

    def _run(self, cell: Cell) -> None:
        """Run a cell, and write its file whether it fails or not."""
        log.info("%s ...", cell)
        cfg, settings, train = self.cfg.model_copy(update={"seed": cell.seed}), self.settings, None
        try:
            dense = self.model.backbone.eval()
            if settings.tune_epochs:
                report = trainers.open_report(
                    cfg, self.files[cell].with_suffix(""), self.material.layout
                )
                train = pruning.retraining(
                    cfg, settings, dense, self.model.description, self.material.data, report
                )
            row, right, self.whole = run_cell(
                cell,
                construct(cfg.method[cell.method], f"method.{cell.method}"),
                dense,
                pruning.judge_of(cfg, settings, self.material),
                Removal(mend=pruning.repair_options(settings), train=train),
                rounds=settings.speed_rounds if settings.speed else 0,
                onnx=settings.onnx,
                whole=self.whole,
            )
            row, level, says = (
                {**row, "note": ""},
                logging.INFO,
                f"{100 * row[list(right)[-1]]:.2f} %",
            )
        except (
            Exception
        ) as error:  # one method, of another package perhaps, may not take down the others
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            says = f"{kind}{' '.join(str(error).split())}"[:300]
            row, right, level = {"note": says}, {}, logging.WARNING  # which a run prints
        log.log(level, "%s: %s", cell, says)
        write(self.files[cell], packed(right, {"row": json.dumps(row)}))


def of_cell(command: str, cell: Cell) -> str:
    """Return the command of one cell, from that of many."""
    one = {"methods": cell.method, "budgets": cell.budget, "seeds": cell.seed}
    others = [word for word in shlex.split(command) if word.partition("=")[0] not in one]
    return shlex.join([*others, *(f"{key}=[{value}]" for key, value in one.items())])


def results(command: str, cells: Mapping[Cell, Kept | None]) -> dict[str, Result]:
    """Return the table of cells, the ranking, and accuracy against FLOPs and time.

    command: for missing cells.
    """
    rows = [
        {**cell._asdict(), **(kept.row if kept else {"note": f"not run: {of_cell(command, cell)}"})}
        for cell, kept in cells.items()
    ]
    every_cell = Result(
        from_rows(rows), about="One row per method, budget (share of FLOPs) and seed."
    )
    tables = {TABLE: every_cell.saying("accuracy", "a better network")}
    if done := [row for row in rows if not row["note"]]:
        right = {cell: kept.right for cell, kept in cells.items() if kept}
        tables[RANKING] = ranked(done, right, Sample(done[0]["images"], "test"))
    return tables
