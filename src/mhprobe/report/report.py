"""Writing of a run's results: tables, figures, metrics.json, dashboards. On rank 0 only."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.tensors import write_masked
from mhprobe.report import ledger, tables
from mhprobe.report.figures import style
from mhprobe.report.result import Result, Sample

__all__ = ["Dashboard", "Report", "Result", "Sample"]

T = TypeVar("T")


@runtime_checkable
class Dashboard(Protocol):
    """A logger that also shows results, each with its entry in the ledger.

    png: its figure, if it has one.
    """

    def add_result(
        self, name: str, entry: ledger.Entry, result: Result, png: Path | None
    ) -> None: ...

    def add_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


class Report:
    """Writer of ``tables/*.csv``, ``figures/*.png``, ``.pdf``, ``metrics.json`` and ``results.json`` into ``folder``.

    loggers: Lightning's; a Dashboard gets the results, too. style: "screen", or "paper" for figures
    that fit columns of a printed page. Methods return the files that they wrote. Raises UserError
    for a folder that cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        layout: HeadLayout | None = None,
        loggers: Iterable[object] = (),
        style: str = "screen",
    ) -> None:
        self.folder, self.style = Path(folder), style
        self._layout = layout
        self.connect(loggers)
        self.origin: Mapping[str, str] = {}  # version, commit and command, for the figures' files
        self.network = self.data = ""  # for the small print of figures
        self.images = Sample()
        self.of: dict[str, str] = {}  # names of network and images, by their digests

    def connect(self, loggers: Iterable[object]) -> None:
        """Write to these loggers, too, from here on."""
        self.loggers = list(loggers)
        self.dashboards = [logger for logger in self.loggers if isinstance(logger, Dashboard)]

    @property
    def layout(self) -> HeadLayout:
        """Layout of the model; a report that compares runs has none."""
        assert self._layout is not None, "this report was made without a layout"
        return self._layout

    @property
    def metrics(self) -> dict[str, float]:
        """Read metrics.json; empty if there is none yet."""
        return self.read("metrics.json", json.loads) or {}

    @property
    def results(self) -> ledger.Ledger:
        """Read results.json; empty if there is none yet."""
        return self.read(ledger.FILE, ledger.Ledger.model_validate_json) or ledger.Ledger(version=2)

    def begin(self, of: dict[str, str], inside: Path | None = None) -> None:
        """Say what new results are of, {} for not known yet.

        UserError in the folder of others, or of a stopped run.

        inside: the folder that the user has named, if this one is a part of it.
        """
        there = self.results
        used = there.results or self.metrics or (self.folder / "checkpoints" / "last.ckpt").exists()
        if used and there.of.keys() != of.keys():
            old, new = (
                " on ".join(f"{name} (digest {key})" for key, name in ends.items())
                for ends in (there.of, of)
            )
            raise UserError(
                f"results: {inside or self.folder} is that of "
                f"{old or 'a stopped training or an older mhprobe'}, and "
                f"results of {new or 'a new training'} would mix with its own. Give another "
                "folder, or remove this one."
            )
        self.of = of

    def read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Read a file of the folder; None if there is none. UserError if it is damaged."""
        file = self.folder / name
        try:
            return parse(file.read_bytes()) if file.exists() else None
        except (OSError, ValueError) as error:
            raise UserError(
                f"results: {file} is damaged. Remove it or name another output folder."
            ) from error

    def add(self, results: Mapping[str, Result]) -> list[Path]:
        """Write tables, figures and metrics of results by their names, and their entries in results.json."""
        paths: list[Path] = []
        written: dict[str, ledger.Entry] = {}
        if results:
            self.add({})  # what they are of comes first: a run that is stopped after this goes on
        for name, result in results.items():
            if not result.empty:
                whole = result._replace(of=self.images if result.of is None else result.of)
                written[name] = ledger.entry(name, whole)
                paths += self._write(name, written[name], whole)
        there = self.results
        if not written and self.of in ({}, there.of):
            return paths
        book = ledger.Ledger(
            version=2, of=self.of or there.of, results={**there.results, **written}
        )
        text = book.model_dump_json(indent=1, exclude_defaults=True)
        return [*paths, write(self.folder / ledger.FILE, text.encode())]

    def _write(self, name: str, entry: ledger.Entry, result: Result) -> list[Path]:
        paths, png = [], None
        if result.table is not None:
            paths.append(tables.write_csv(self.folder / "tables" / f"{name}.csv", result.table))
        if result.figure is not None:
            about = ", ".join(part for part in (self.network, self.data, str(result.of)) if part)
            files = self.folder / "figures" / name
            paths += (
                drawn := style.save_figure(
                    result.figure, files, about, self.style == "paper", self.origin
                )
            )
            png = drawn[0]
        if result.outcomes:
            right = {curve: of.right for curve, of in result.outcomes.items()}
            images = next(iter(result.outcomes.values())).images
            paths.append(write_masked(self.folder, right, images))
        for dashboard in self.dashboards:
            dashboard.add_result(name, entry, result, png)
        return paths + (self.add_metrics(result.metrics) if result.metrics else [])

    def add_metrics(self, metrics: Mapping[str, float]) -> list[Path]:
        """Merge numbers into metrics.json, replacing those of the same name."""
        merged = {**self.metrics, **metrics}
        # JSON has no NaN
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in merged.items()
        }
        for dashboard in self.dashboards:
            dashboard.add_metrics(metrics)
        return [
            write(
                self.folder / "metrics.json",
                (json.dumps(plain, indent=2, sort_keys=True) + "\n").encode(),
            )
        ]

    def close(self) -> None:
        for dashboard in self.dashboards:
            dashboard.finish()
