"""Results of a measure: its tables, its figures, and those of its control, each with what it is.

Shapes: A heads of all sites.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from mhprobe.heads import HeadLayout
from mhprobe.report import tables, twins
from mhprobe.report.result import Extreme, Result, Sample
from mhprobe.report.tables import MeasureKind

CHANCE = ("null", "chance", "uniform")  # columns that say what a value would be by chance
TWIN = "random_init"  # a column, and the end of the names of a control's tables
INTERVAL = ("low", "high")


class Described(Protocol):
    """Facts that a measure states of itself: see ``mhprobe.measures.base.Measure``."""

    @property
    def kind(self) -> MeasureKind: ...
    @property
    def label(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def larger(self) -> str: ...
    @property
    def alike(self) -> Extreme: ...
    @property
    def masks(self) -> bool: ...
    @property
    def also(self) -> Sequence[str]: ...
    @property
    def axes(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def about(self) -> str: ...
    @property
    def of_images(self) -> bool: ...


def of_measure(
    name: str,
    measure: Described,
    layout: HeadLayout,
    columns: Mapping[str, Tensor],
    control: Mapping[str, Tensor] | None = None,
    label: str | None = None,
    end: str = "",
    during: str = "",
    drawn: Mapping[str, str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Result]:
    """All results of a measure by their names, which begin with ``name`` and stop with ``end``.

    The measure's table and figure are called ``name``. Columns with one more axis have a table each,
    ``<name>_<column>``; pairs of heads are summed up per pair of blocks, ``<name>_blocks``; further figures are
    ``<name>_<kind>``. columns: "value" first. control: the same columns of a freshly initialised network: it stands in
    the tables as the column "random_init", in the figures, and in tables of its own, ``<name>_random_init``.
    label: in place of the measure's. during: as in ``Result``. drawn: kinds of figures by the end of their names, in
    place of the measure's own. options: of figures, by kind.
    """
    label = label or measure.label
    shown = dict(columns) if control is None else {**columns, TWIN: control["value"]}
    results = {
        f"{name}{part}{end}": _described(measure, label, Result(table, part_of=name if part else "", during=during))
        for part, table in tables.of_measure(layout, measure.kind, shown, measure.axes).items()
    }
    # figures are of heads; of neurons there are hundreds for each
    heads, of_heads, of_twin = layout.of("head"), _of_heads(shown, layout), control and _of_heads(control, layout)
    for part, kind in ({"": measure.kind, **{f"_{k}": k for k in measure.also}} if drawn is None else drawn).items():
        figure = twins.draw(kind, heads, of_heads, label, measure.axes, of_twin, **(options or {}).get(kind, {}))
        key = f"{name}{part}{end}"
        # a column may be called as its figure is
        table = results.get(key) or _described(measure, label, Result(part_of=name if part else "", during=during))
        results[key] = table._replace(figure=figure, drawn=kind)
    if control is not None:
        for part, table_of_twin in tables.of_measure(layout, measure.kind, control, measure.axes).items():
            twin = Result(table_of_twin, part_of=name, during=during, control_of=f"{name}{part}{end}")
            results[f"{name}{part}_{TWIN}{end}"] = _described(measure, label, twin)
    return results


def _of_heads(columns: Mapping[str, Tensor], layout: HeadLayout) -> Mapping[str, Tensor]:
    """The columns without the numbers of neurons."""
    if layout.kinds <= {"head"}:
        return columns
    count, heads = layout.num_heads, layout.of("head").num_heads
    return {name: each[:heads] if each.shape[:1] == (count,) else each for name, each in columns.items()}


def _described(measure: Described, label: str, result: Result) -> Result:
    """With what the measure says of itself, and what the columns of the table are for."""
    names = [] if result.table is None else result.table.columns
    return result._replace(
        label=label,
        unit=measure.unit if label == measure.label else "",
        larger=measure.larger,
        alike=measure.alike if measure.kind == "pairwise" else None,
        masks=measure.masks,
        about=measure.about,
        of=None if measure.of_images else Sample(),
        interval=INTERVAL if set(INTERVAL) <= set(names) else None,
        chance=next((column for column in CHANCE if column in names), ""),
        control=TWIN if TWIN in names else "",
    )
