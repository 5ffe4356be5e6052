"""Named results of one run -> tables, figures, metrics.json, and whatever dashboard listens. On rank 0 only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.files import write
from mhprobe.heads import HeadLayout
from mhprobe.report import figures, tables


@runtime_checkable
class Dashboard(Protocol):
    """A logger that also shows results. A logger that is none is left to Lightning."""

    def add_table(self, name: str, table: tables.Table) -> None: ...

    def add_figure(self, name: str, png: Path) -> None: ...

    def add_curves(self, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def add_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


class Report:
    """Writes ``tables/*.csv``, ``figures/*.png`` and ``.pdf``, and ``metrics.json`` into ``folder``.

    loggers: Lightning's; those that are a Dashboard are told too. Each method returns the files it wrote. A folder
    that cannot be written is a UserError.
    """

    def __init__(self, folder: Path, layout: HeadLayout, loggers: Iterable[object] = ()) -> None:
        self.folder = Path(folder)
        self.layout = layout
        self.dashboards = [logger for logger in loggers if isinstance(logger, Dashboard)]

    @property
    def metrics(self) -> dict[str, float]:
        """What metrics.json holds; empty if there is none yet."""
        file = self.folder / "metrics.json"
        if not file.exists():
            return {}
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"results: {file} is damaged. Remove it or name another output folder.") from error

    def add_measure(
        self, name: str, kind: str, columns: Mapping[str, Tensor], label: str | None = None, epoch: int | None = None
    ) -> list[Path]:
        """One measure: its columns, "value" first, as the table and the figure of its kind (per_head, pairwise).

        label: what "value" is and its unit, for the colour bar. epoch: of a probe during training, kept apart.
        """
        stem = name if epoch is None else f"{name}_epoch_{epoch:03d}"
        table = getattr(tables, kind)(self.layout, columns)
        figure = getattr(figures, kind)(self.layout, columns, label or name.replace("_", " "))
        return self._add(stem, table, figure)

    def add_curves(
        self, rows: Sequence[Mapping[str, Any]], chance: float | None = None, name: str = "masking_curves"
    ) -> list[Path]:
        """The rows of all masking curves of a run, in one table and one figure. chance: the accuracy of guessing."""
        if not rows:
            return []
        for dashboard in self.dashboards:
            dashboard.add_curves(rows)
        return self._add(name, tables.curves(rows), figures.curves(rows, self.layout.num_heads, chance))

    def add_metrics(self, metrics: Mapping[str, float]) -> list[Path]:
        """Merge numbers into metrics.json; a later number replaces an earlier one of the same name."""
        merged = {**self.metrics, **metrics}
        # JSON has no NaN: null is what other readers understand
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in merged.items()
        }
        for dashboard in self.dashboards:
            dashboard.add_metrics(metrics)
        return [write(self.folder / "metrics.json", (json.dumps(plain, indent=2, sort_keys=True) + "\n").encode())]

    def close(self) -> None:
        """Let dashboards finish sending."""
        for dashboard in self.dashboards:
            dashboard.finish()

    def _add(self, stem: str, table: tables.Table, figure: Any) -> list[Path]:
        paths = [tables.write_csv(self.folder / "tables" / f"{stem}.csv", table)]
        paths += figures.save(figure, self.folder / "figures" / stem)
        for dashboard in self.dashboards:
            dashboard.add_table(stem, table)
            dashboard.add_figure(stem, paths[1])
        return paths
