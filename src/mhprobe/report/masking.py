"""Results of masking for a report: curves, and what became of the heads."""

import math
from collections.abc import Sequence

from mhprobe.heads import HeadLayout
from mhprobe.masking.parts.trace import Curve, Totals, summary
from mhprobe.masking.redundant_or_inert import MaskedHead, RedundantOrInert, control
from mhprobe.report import tables
from mhprobe.report.figures import masking
from mhprobe.report.report import Result


def of_curves(
    curves: Sequence[Curve], found: Sequence[Totals], layout: HeadLayout, chance: float | None
) -> dict[str, Result]:
    """All masking curves of a run, by name of the result. found: their totals. chance: accuracy of guessing, if any."""
    results = {}
    if curves:
        figure = masking.curves(curves, layout.num_heads, chance)
        scored = curves[0].scored
        columns = {"loss": scored.lost} if scored.lost else {}
        results["masking_curves"] = Result(
            tables.curves(curves), figure, curves=curves, label=scored.right, columns=columns, drawn="curves"
        )
        if scored.lost:
            drawn = masking.distances(curves, layout.num_heads)
            results["masking_distances"] = Result(figure=drawn, label=scored.lost, drawn="distances")
    if found:
        results["masking_totals"] = Result(tables.totals(found), metrics=summary(found))
    return results


def of_masked_heads(heads: Sequence[MaskedHead], question: RedundantOrInert) -> dict[str, Result]:
    """Results on redundant and inert heads: a table, and a figure per similarity."""
    if not heads:
        return {}
    results = {"maskable_heads": Result(tables.masked_heads(heads))}
    for name in heads[0].likeness:
        figure = masking.maskable(heads, name, question.inert)
        results[f"maskable_heads_{name}"] = Result(figure=figure, drawn="maskable", part_of="maskable_heads")
    return results


def answer(
    found: Sequence[Totals], heads: Sequence[MaskedHead], curves: Sequence[Curve] = (), chance: float | None = None
) -> list[str]:
    """A line per curve that was tested: how many heads could go, and what they were.

    curves, chance: one line instead where the unmasked model is not told apart from guessing.
    """
    whole = [curve for curve in curves if curve.split == "test" and curve.step[0] == 0]
    if chance is not None and any(float(curve.points.low[0]) <= chance for curve in whole):
        return [f"the whole network is not told apart from guessing ({chance:.1%}): no curve says which heads can go"]
    lines = []
    for row in found:
        if row.heads_before_worse is None:
            continue
        line = f"{row.curve} on {row.split}: {row.heads_before_worse:g} heads go before {row.of} is significantly lower"
        if row.heads_before_worse == 0:
            line = f"{row.curve} on {row.split}: already its first step makes {row.of} significantly lower"
        own = [head for head in heads if (head.curve, head.split) == (row.curve, row.split)]
        verdicts = [head.verdict for head in own if head.phase == "before"]
        if verdicts:
            counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
            others, p = [head for head in own if head.phase != "before"], control(own)
            beside = (
                f"; of the {len(others)} that can not go {sum(head.alike for head in others)} share more than chance "
                f"with a kept head too, and those that can go are {'more' if p < 0.05 else 'not more'} like kept heads "
                f"than these, p = {p:.2g}"
            )
            line += f" (redundant or inert? {', '.join(counts)}{'' if math.isnan(p) else beside})"
        lines.append(line)
    return lines
