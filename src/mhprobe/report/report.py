"""Named results of one run -> tables, figures, metrics.json, and whatever dashboard listens. On rank 0 only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.masking.trace import Curve
from mhprobe.report import tables, twins
from mhprobe.report.figures import style


class Result(NamedTuple):
    """What one question gave. curves: for dashboards that draw them themselves, beside the figure.

    label: what its values are, for labels.json.
    of: the images that the figure is of, where it is not of all that the report is about; "" for none.
    """

    table: tables.Table | None = None
    figure: style.Figure | None = None
    metrics: Mapping[str, float] = MappingProxyType({})
    curves: Sequence[Curve] = ()
    label: str = ""
    of: str | None = None


def counted(images: int, kind: str = "test") -> str:
    """For ``Result.of``: 1 -> "1 test image", 200 -> "n = 200 test images"."""
    return f"1 {kind} image" if images == 1 else f"n = {images:,} {kind} images"


@runtime_checkable
class Dashboard(Protocol):
    """A logger that also shows results. A logger that is none is left to Lightning."""

    def add_table(self, name: str, table: tables.Table) -> None: ...

    def add_figure(self, name: str, png: Path) -> None: ...

    def add_curves(self, curves: Sequence[Curve]) -> None: ...

    def add_metrics(self, metrics: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


class Report:
    """Writes ``tables/*.csv``, ``figures/*.png`` and ``.pdf``, ``metrics.json`` and ``labels.json`` into ``folder``.

    loggers: Lightning's; those that are a Dashboard are told too. style: "screen", or "paper" for figures that fit the
    columns of a printed page. Each method returns the files it wrote. A folder that cannot be written is a UserError.
    """

    def __init__(
        self, folder: Path, layout: HeadLayout | None = None, loggers: Iterable[object] = (), style: str = "screen"
    ) -> None:
        self.folder, self.style = Path(folder), style
        self._layout = layout
        self.loggers = list(loggers)
        self.dashboards = [logger for logger in self.loggers if isinstance(logger, Dashboard)]
        self.labels: dict[str, str] = {}
        self.origin: Mapping[str, str] = {}  # version, commit and command, for the figures' files
        self.network = self.data = self.images = ""  # for the small print of figures; images: how many of which

    @property
    def layout(self) -> HeadLayout:
        """Of the model that the results are about; a report that compares runs has none."""
        assert self._layout is not None, "this report was made without a layout"
        return self._layout

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

    def add(self, name: str, result: Result) -> list[Path]:
        """``tables/<name>.csv``, ``figures/<name>.png`` and ``.pdf``, metrics.json: what the result has of them."""
        paths = [] if result.table is None else self.add_table(name, result.table)
        paths += [self._say(name, result.label)] if result.label else []
        if result.curves:
            for dashboard in self.dashboards:
                dashboard.add_curves(result.curves)
        if result.figure is not None:
            paths += self.add_figure(name, result.figure, result.of)
        return paths + (self.add_metrics(result.metrics) if result.metrics else [])

    def add_measure(
        self,
        name: str,
        kind: str,
        columns: Mapping[str, Tensor],
        label: str | None = None,
        also: Sequence[str] = (),
        axes: Mapping[str, Sequence[str]] | None = None,
        suffix: str = "",
        control: Mapping[str, Tensor] | None = None,
        of: str | None = None,
    ) -> list[Path]:
        """One measure: its columns, "value" first, as the table and the figure of its kind (per_head, pairwise, ...).

        label: what "value" is and its unit, for the colour bar. also: more kinds of figures, each ``<name>_<kind>``.
        axes: for columns with one more axis behind the heads or pairs, the names along it; each becomes a table of its
        own, ``<name>_<column>``. Pairs of heads are also summed up per pair of blocks, ``<name>_blocks``. suffix: keeps
        e.g. an epoch's results apart. control: the same columns of a freshly initialised network, for the figures. of:
        as in ``Result``.
        """
        label = label or name.replace("_", " ")
        paths = [*self.add_columns(name, kind, columns, axes, suffix), self._say(name, label)]
        for each, stem in ((kind, name), *((other, f"{name}_{other}") for other in also)):
            figure = twins.draw(each, self.layout, columns, label, axes, control)
            paths += self.add_figure(stem + suffix, figure, of)
        return paths

    def _say(self, name: str, label: str) -> Path:
        self.labels[name] = label
        return write(self.folder / "labels.json", json.dumps(self.labels, indent=2).encode())

    def add_columns(
        self,
        name: str,
        kind: str,
        columns: Mapping[str, Tensor],
        axes: Mapping[str, Sequence[str]] | None = None,
        suffix: str = "",
    ) -> list[Path]:
        """The tables alone, as ``add_measure`` writes them."""
        found = tables.of_measure(self.layout, kind, columns, axes)
        return [path for end, table in found.items() for path in self.add_table(f"{name}{end}{suffix}", table)]

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

    def add_table(self, name: str, table: tables.Table) -> list[Path]:
        """``tables/<name>.csv``."""
        path = tables.write_csv(self.folder / "tables" / f"{name}.csv", table)
        for dashboard in self.dashboards:
            dashboard.add_table(name, table)
        return [path]

    def add_figure(self, name: str, figure: Any, of: str | None = None) -> list[Path]:
        """``figures/<name>.png`` and ``.pdf`` of a matplotlib figure. of: as in ``Result``."""
        about = ", ".join(part for part in (self.network, self.data, self.images if of is None else of) if part)
        paths = style.save(figure, self.folder / "figures" / name, about, self.style == "paper", self.origin)
        for dashboard in self.dashboards:
            dashboard.add_figure(name, paths[0])
        return paths
