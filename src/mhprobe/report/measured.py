"""Results of measures (with a control, compared, along training) and of masking: tables and figures.

Shapes: A heads of all sites, P points in training.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from mhprobe.heads import KINDS, HeadLayout
from mhprobe.masking.parts.trace import Curve, Totals, summary
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert, control, needed_heads
from mhprobe.report import tables, twins
from mhprobe.report.figures import masking, runs, training
from mhprobe.report.figures.masking import Over
from mhprobe.report.result import Extreme, Result, Sample
from mhprobe.report.tables import MeasureKind, Table
from mhprobe.stats.agreement import agreement, pearson, spearman, with_both
from mhprobe.stats.significance import significant

TWIN = "random_init"  # a column, and the end of the names of a control's tables


class Described(Protocol):
    """Facts that a measure states of itself: see ``mhprobe.measures.base.Measure``."""

    kind: ClassVar[MeasureKind]
    larger: ClassVar[str]
    along: ClassVar[Mapping[str, tuple[str, str]]]
    alike: ClassVar[Extreme]
    masks: ClassVar[bool]
    also: ClassVar[tuple[str, ...]]
    of_images: ClassVar[bool]
    label: str
    unit: str
    axes: dict[str, list[str]]
    layout: HeadLayout

    @property
    def about(self) -> str: ...


class Figures(NamedTuple):
    """Figures of a measure.

    kinds: by the end of their names, in place of the measure's own. options: by kind.
    """

    kinds: Mapping[str, str] | None = None
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def of_measure(
    name: str,
    measure: Described,
    columns: Mapping[str, Tensor],
    control: Mapping[str, Tensor] | None = None,
    label: str | None = None,
    end: str = "",
    during: str = "",
    figures: Figures = Figures(),
) -> dict[str, Result]:
    """Return all results of a measure by their names, which begin with ``name`` and stop with ``end``.

    ``name`` is the measure's table and figure, ``<name>_<column>`` a table of columns with one more
    axis, ``<name>_blocks`` pairs of heads summed up per pair of blocks, ``<name>_<kind>`` a further
    figure.
    columns: "value" first. control: the same columns of a freshly initialised network, for the
    column "random_init", the figures, and tables ``<name>_random_init``. label: in place of the
    measure's. during: as in ``Result``. figures: which are drawn, and how.
    """
    label, layout = label or measure.label, measure.layout
    shown = dict(columns) if control is None else {**columns, TWIN: control["value"]}
    results = {
        f"{name}{part}{end}": _described(
            measure, label, Result(table, part_of=part and name, during=during), part
        )
        for part, table in tables.of_measure(layout, measure.kind, shown, measure.axes).items()
    }
    heads = layout.of("head")
    of_heads = _of_heads(shown, layout)
    of_twin = control and _of_heads(control, layout)
    kinds = figures.kinds
    if kinds is None:
        kinds = {"": measure.kind, **{f"_{kind}": kind for kind in measure.also}}
    for part, kind in kinds.items():
        options = figures.options.get(kind, {})
        figure = twins.draw_measure(kind, heads, of_heads, label, measure.axes, of_twin, **options)
        key = f"{name}{part}{end}"
        # a column may be called as its figure is
        table = results.get(key) or _described(
            measure, label, Result(part_of=name if part else "", during=during)
        )
        results[key] = table._replace(figure=figure, drawn=kind)
    if control is not None:
        for part, table_of_twin in tables.of_measure(
            layout, measure.kind, control, measure.axes
        ).items():
            twin = Result(
                table_of_twin, part_of=name, during=during, control_of=f"{name}{part}{end}"
            )
            results[f"{name}{part}_{TWIN}{end}"] = _described(measure, label, twin, part)
    return results


def _of_heads(columns: Mapping[str, Tensor], layout: HeadLayout) -> Mapping[str, Tensor]:
    """Remove the numbers of neurons, which figures leave out."""
    count, heads = layout.num_heads, layout.of("head").num_heads
    return {
        name: values[:heads] if values.shape[:1] == (count,) else values
        for name, values in columns.items()
    }


def _described(measure: Described, label: str, result: Result, part: str = "") -> Result:
    """Add the measure's facts; to a table of another column, with one more axis, only what holds of it, too."""
    result = result._replace(about=measure.about, of=None if measure.of_images else Sample())
    if result.table is not None and result.table.kind.endswith("_along"):
        column = part[1:]
        label, larger = measure.along.get(column, (column.replace("_", " "), ""))
        return result.saying(label, larger)
    result = result._replace(
        alike=measure.alike if measure.kind == "pairwise" else None, masks=measure.masks
    )
    return result.saying(label, measure.larger, measure.unit if label == measure.label else "")


class Point(NamedTuple):
    """One look at the heads during training. values: A numbers."""

    epoch: int
    step: int
    values: list[float]


def agreement_of(values: Mapping[str, Tensor], control: Mapping[str, Tensor], k: int) -> Result:
    """Compare every two measures' (A,) values. control: of a random initialisation, or {}."""
    if len(values) < 2:
        return Result()
    ranking = agreement(values, k)
    other = (
        agreement({name: control[name] for name in ranking.names}, k)
        if set(values) <= set(control)
        else None
    )
    columns = [
        "measure_a",
        "measure_b",
        "spearman",
        "spearman_low",
        "spearman_high",
        "overlap",
        "chance",
        "k",
    ]
    columns += ["spearman_random_init", "overlap_random_init"] if other is not None else []
    rows = []
    for i, a in enumerate(ranking.names):
        for j, b in enumerate(ranking.names[:i]):
            matrices = [
                ranking.spearman,
                ranking.low,
                ranking.high,
                ranking.overlap,
                ranking.chance,
            ]
            row = [b, a, *(matrix[i, j].item() for matrix in matrices), ranking.k]
            rows.append(
                row
                + (
                    []
                    if other is None
                    else [other.spearman[i, j].item(), other.overlap[i, j].item()]
                )
            )
    about = "rank correlation of two measures over heads", "they rank the heads more alike"
    return Result(Table(columns, rows), runs.agreement(ranking, other), drawn="agreement").saying(
        *about
    )


def two_data_sets(
    layout: HeadLayout, first: str, second: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Result:
    """Correlate every measure's (A,) values on two data sets over heads."""
    panels = [(name, a[name], b[name], pearson(a[name], b[name])) for name in a if name in b]
    if not panels:
        return Result()
    rows = [
        [name, r.r, r.low, r.high, spearman(*with_both(x, y)), r.heads] for name, x, y, r in panels
    ]
    table = Table(["measure", "pearson", "low", "high", "spearman", "heads"], rows)
    about = (
        "correlation over heads of a measure on two data sets",
        "the data sets agree more about the heads",
    )
    return Result(table, runs.scatter(layout, panels, first, second), drawn="scatter").saying(
        *about
    )


def history(
    layout: HeadLayout, label: str, points: Sequence[Point], drawn: bool, larger: str = ""
) -> Result:
    """Return a measure along training: a row per point and head, and if ``drawn`` the figure."""
    heads = tables.per_head(layout, {})
    rows = [
        [point.epoch, point.step, *head, value]
        for point in points
        for head, value in zip(heads.rows, point.values, strict=True)
    ]
    result = Result(Table(["epoch", "step", *heads.columns, "value"], rows, "history")).saying(
        label, larger
    )
    if not drawn:
        return result
    values = torch.tensor([point.values for point in points], dtype=torch.float64)
    figure = training.history(layout, [point.step for point in points], values, label)
    return result._replace(figure=figure, drawn="history")


def of_curves(
    curves: Sequence[Curve],
    totals: Sequence[Totals],
    layout: HeadLayout,
    chance: float | None,
    over: Over = "heads",
) -> dict[str, Result]:
    """Return all results of masking curves.

    totals: one per curve and split. chance: accuracy of guessing, if any.
    """
    results = {}
    if curves:
        units = " and ".join(f"{kind}s" for kind in KINDS if kind in layout.kinds)
        figure = masking.curves(curves, layout.num_heads, chance, over, units)
        scored = curves[0].scored
        columns = {"loss": scored.lost} if scored.lost else {}
        table = tables.from_rows(tables.curve_rows(curves), "curves")
        drawn = Result(table, figure, curves=curves, columns=columns, drawn="curves")
        results["masking_curves"] = drawn.saying(scored.right, "the masked heads are needed less")
        if scored.lost:
            drawn = Result(figure=masking.distances(curves, layout.num_heads), drawn="distances")
            results["masking_distances"] = drawn.saying(
                scored.lost, "the masked heads are needed more"
            )
    if totals:
        of = Sample(split=" and ".join(dict.fromkeys(row.split for row in totals)))
        whole = Result(tables.totals(totals), metrics=summary(totals), of=of)
        results["masking_totals"] = whole.saying(
            "heads that can go", "the order spares what the network needs"
        )
    return results


def of_masked_heads(heads: Sequence[MaskedHead], question: RedundantOrInert) -> dict[str, Result]:
    """Return a table of redundant and inert heads, and a figure per similarity."""
    if not heads:
        return {}
    about = (
        "likeness to a kept head, from chance (0) to identity (1)",
        "a kept head does more of the same",
    )
    results = {"maskable_heads": Result(tables.masked_heads(heads)).saying(*about)}
    for name in heads[0].likeness:
        drawn = Result(
            figure=masking.maskable(heads, name, question.inert),
            drawn="maskable",
            part_of="maskable_heads",
        )
        results[f"maskable_heads_{name}"] = drawn.saying(*about)
    return results


def verdicts_on_curves(
    totals: Sequence[Totals],
    heads: Sequence[MaskedHead],
    curves: Sequence[Curve] = (),
    chance: float | None = None,
) -> list[str]:
    """Return a line per tested curve: the heads that are shown to cost little, and verdicts on those before the drop.

    curves, chance: for one line instead if the unmasked model does not differ significantly from
    guessing.
    """
    whole = [curve for curve in curves if curve.split == "test" and curve.step[0] == 0]
    if chance is not None and any(float(curve.points.low[0]) <= chance for curve in whole):
        return [
            f"the whole network is not told apart from guessing ({chance:.1%}): no curve says "
            "which heads can go"
        ]
    tested = [row for row in totals if row.heads_shown_within_1_point is not None]
    return [
        _verdict(
            row, [head for head in heads if (head.curve, head.split) == (row.curve, row.split)]
        )
        for row in tested
    ]


def _verdict(row: Totals, masked: Sequence[MaskedHead]) -> str:
    """Say how many heads of a curve cost little, and what the heads before the drop are. masked: its heads."""
    line = (
        f"{row.curve} on {row.split}: {row.heads_shown_within_1_point:g} heads are shown to cost "
        f"less than one point of {row.of}"
    )
    verdicts = [head.verdict for head in masked if head.phase == "before"]
    if verdicts:
        line += f" ({_counts(verdicts)}{_beside_needed(masked)})"
    if masked and not needed_heads(masked):
        line += f"; the curve ended before {row.of} was significantly lower"
    return line


def _counts(verdicts: Sequence[str]) -> str:
    words = {"neither": "neither redundant nor inert"}
    counts = Counter(verdicts)  # in the order of the heads
    return ", ".join(f"{count} {words.get(verdict, verdict)}" for verdict, count in counts.items())


def _beside_needed(masked: Sequence[MaskedHead]) -> str:
    """Say whether heads that can go resemble kept ones more than needed heads do; "" without a test."""
    needed = needed_heads(masked)
    p = control(masked)
    if math.isnan(p):
        return ""
    return (
        f"; of {len(needed)} needed heads {sum(head.alike for head in needed)} resemble a kept head "
        "more than chance; heads that can go resemble kept heads "
        f"{'more' if significant(p) else 'no more'} than needed ones, p = {p:.2g}"
    )
