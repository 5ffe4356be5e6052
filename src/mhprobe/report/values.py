"""Values of a measure in a notebook: a tensor with all other columns as attributes.

``argsort``, ``torch.testing``, NumPy and matplotlib take it; results of operations on it are plain
tensors.
"""

import html
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.readings import Reading
from mhprobe.report import tables
from mhprobe.report.tables import Table

_ROWS = 12  # of a table that is displayed; to_frame() has all
_COLUMNS = 8
_PLACE = {"stage", "block", "index", "layout"}  # the site's name says as much


class Values(Tensor):
    """A measure's column "value", (A,) or (A, A) or (S, S).

    columns: all columns by name, "value" first: intervals, nulls, counts ... as the measure's
    docstring lists them.
    name, label: of the measure, and what the value is. kind: "per_head", "pairwise" or
    "pairwise_layers".
    heads: the layout, which head is which.
    """

    columns: dict[str, Tensor]
    label: str
    kind: str
    heads: HeadLayout
    _name: str

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(
        name: str, label: str, kind: str, layout: HeadLayout, columns: Mapping[str, Tensor]
    ) -> "Values":
        values: Values = Tensor._make_subclass(Values, columns["value"])
        values._name, values.label, values.kind = name, label, kind
        values.heads, values.columns = layout, dict(columns)
        return values

    @property
    def name(self) -> str:
        return self._name

    def table(self) -> Table:
        """Return a row per head, or per compared pair, as in the measure's .csv."""
        return getattr(tables, self.kind)(self.heads, self.columns)

    def to_frame(self) -> Any:
        """Return ``table`` as a pandas.DataFrame. Raises UserError if pandas is not installed."""
        table = self.table()
        return _pandas().DataFrame(table.rows, columns=table.columns)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        cells, left = self._shown()
        wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(text.rjust(room) for text, room in zip(row, wide, strict=True))
            for row in cells
        ]
        return "\n".join([self._title(), *lines, *left])

    def _repr_html_(self) -> str:
        cells, left = self._shown()
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in cells
        )
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in left)
        return f"<p>{html.escape(self._title())}</p><table>{rows}</table>{lines}"

    def _title(self) -> str:
        return f"{self.name}: {self.label} ({' x '.join(map(str, self.shape))})"

    def _shown(self) -> tuple[list[list[str]], list[str]]:
        """Return the rows that fit on a screen, header first, and a line about the rest."""
        table = self.table()
        names = [name for name in table.columns if name not in _PLACE][:_COLUMNS]
        rows = [[row[table.columns.index(name)] for name in names] for row in table.rows[:_ROWS]]
        more = [name for name in self.columns if not {name, f"{name}_a"} & set(names)]
        hidden = [f"{len(table.rows) - len(rows)} more rows"] if len(table.rows) > len(rows) else []
        hidden += [f"columns {', '.join(more)}"] if more else []
        cells = [
            [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in rows
        ]
        return [names, *cells], [
            f"... {'; '.join(hidden)}: see .columns and .to_frame()"
        ] if hidden else []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Values":
        copied = {name: values.clone() for name, values in self.columns.items()}
        return Values.of(self.name, self.label, self.kind, self.heads, copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Values.of, (self.name, self.label, self.kind, self.heads, self.columns)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UserError(
            "to_frame: pandas is not installed; pip install pandas, or use .columns."
        ) from None
    return pandas


class Found(dict[str, Values]):
    """Results of measures by name.

    refused: errors of measures without a result, raised by ``[name]``. readings: how the network's
    file, its outputs and the images were interpreted, by what was read.
    """

    def __init__(
        self,
        values: Mapping[str, Values],
        refused: Mapping[str, UserError],
        readings: Mapping[str, Reading] = MappingProxyType({}),
    ) -> None:
        super().__init__(values)
        self.refused, self.readings = dict(refused), dict(readings)

    def to_frame(self) -> Any:
        """Return all tables as one pandas.DataFrame with a column "measure"; missing columns are empty.

        Raises UserError if pandas is not installed.
        """
        pandas = _pandas()
        frames = [values.to_frame().assign(measure=name) for name, values in self.items()]
        if not frames:
            return pandas.DataFrame(columns=["measure"])
        every = pandas.concat(frames, ignore_index=True)
        return every[["measure", *(name for name in every.columns if name != "measure")]]

    def __repr__(self) -> str:
        return "\n\n".join([*map(repr, self.values()), *self._unsaid()])

    def _repr_html_(self) -> str:
        shown = [values._repr_html_() for values in self.values()]
        return "".join([*shown, *(f"<p>{html.escape(line)}</p>" for line in self._unsaid())])

    def _unsaid(self) -> list[str]:
        return [f"{name}: not measured. {error}" for name, error in self.refused.items()]

    def __missing__(self, name: str) -> Values:
        if name in self.refused:
            raise self.refused[name]
        raise UserError(
            f"measure: {quoted(name)} was not measured; there are {', '.join(self) or 'none'}."
        )
