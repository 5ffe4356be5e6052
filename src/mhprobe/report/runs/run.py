"""A finished run, read back from its folder: everything that the page shows comes from these files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, UnsupportedInterpolationType

from mhprobe.errors import UserError
from mhprobe.io.head_tables import DIGEST, read_cells
from mhprobe.io.typed import typed
from mhprobe.report.tables import Table

DURING = re.compile(r"_(start|epoch_\d+|step_\d+)$")  # ends the names of what was seen during training
CONTROL = "_random_init"  # ends the names of a freshly initialised twin's tables and figures


@dataclass(frozen=True)
class Run:
    """What a run left behind; what is missing is empty.

    tables: by the file's name. config: as composed. overrides: of the command line. facts: ``run.json``. labels: what
    each measure's values are. model: what describes its weights. unread: what could not be read, each with the reason.
    """

    folder: Path
    tables: dict[str, Table]
    metrics: dict[str, float | None]
    config: dict[str, Any]
    overrides: list[str]
    facts: dict[str, Any]
    labels: dict[str, Any]
    model: dict[str, Any]
    unread: list[str]

    @property
    def name(self) -> str:
        """Experiment and time, e.g. ``digits_vit/2026-11-21_18-01-33``."""
        return "/".join(self.folder.parts[-2:])

    @property
    def pictures(self) -> list[Path]:
        return sorted((self.folder / "figures").glob("*.png"))


def read_run(folder: Path) -> Run:
    """UserError if ``folder`` holds no results. A file that is damaged is left out, and named in ``unread``."""
    folder = Path(folder).resolve()
    if not any((folder / name).exists() for name in ("metrics.json", "tables", "figures")):
        raise UserError(
            f"report: {folder} holds no metrics.json, tables/ or figures/. Give the folder of a finished run, e.g. "
            f"outputs/digits_vit/<time>."
        )
    unread: list[str] = []
    tables = {}
    for path in sorted((folder / "tables").glob("*.csv")):
        try:
            tables[path.stem] = read_table(path)
        except UserError as error:
            unread.append(str(error).removeprefix("report: ").replace(f"{folder}/", ""))
    config = _yaml(folder / "config" / "config.yaml", unread)
    try:
        overrides = typed(folder)
    except (OSError, ValueError) as error:
        unread.append(f"config/{error}")
        overrides = []
    weights = config.get("weights") if isinstance(config, dict) else None
    described = [folder / "model.json", folder / "pruned.json"]
    described += [Path(weights).with_suffix(".json")] if weights else []
    model = next((found for file in described if (found := _json(file, unread))), {})
    return Run(
        folder,
        tables,
        _json(folder / "metrics.json", unread),
        config if isinstance(config, dict) else {},
        overrides,
        _json(folder / "run.json", unread),
        _json(folder / "labels.json", unread),
        model,
        unread,
    )


def read_table(path: Path) -> Table:
    """A table as it was written: numbers as numbers, an empty cell or NaN as None; without the model's digest.

    UserError for a file that is damaged.
    """
    columns, rows = read_cells(path, "report")
    shown = [at for at, name in enumerate(columns) if name != DIGEST]
    return Table([columns[at] for at in shown], [[_value(row[at]) for at in shown] for row in rows])


def settings(run: Run) -> dict[str, str]:
    """The configuration, flat: ``optim.lr`` -> ``0.001``."""
    return dict(_flat("", run.config))


def _flat(where: str, part: Any) -> list[tuple[str, str]]:
    if isinstance(part, Mapping) and part:
        return [pair for key, value in part.items() for pair in _flat(f"{where}.{key}" if where else str(key), value)]
    return [(where, str(part))]


def column(table: Table, name: str) -> list[Any]:
    """One column's cells."""
    at = table.columns.index(name)
    return [row[at] for row in table.rows]


def _value(cell: str) -> Any:
    if cell == "":
        return None
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if number - number == 0 else None  # JSON has neither NaN nor infinity


def _json(path: Path, unread: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        unread.append(f"{path.name}: {error}")
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def _yaml(path: Path, unread: list[str]) -> Any:
    if not path.is_file():
        return {}
    try:
        return _resolved(OmegaConf.load(path))
    except (OSError, ValueError, OmegaConfBaseException) as error:
        unread.append(f"config/{path.name}: {' '.join(str(error).split())}")
        return {}


def _resolved(found: Any) -> Any:
    """With interpolations filled in; as written where one asks a running command, e.g. ``${mhprobe.network:}``."""
    try:
        return OmegaConf.to_container(found, resolve=True)
    except UnsupportedInterpolationType:
        return OmegaConf.to_container(found)
