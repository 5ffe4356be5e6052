"""Runs side by side, each against the first: accuracy, masking curves, and which heads changed.

Accuracies of runs that were tested on the same images are compared image by image. Every other difference has a 95 %
interval that takes the runs as independent: on the same images it is too wide where images move both runs alike.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.report import outcomes
from mhprobe.report.html.page import facts, render
from mhprobe.report.runs import atlas, curves, words
from mhprobe.report.runs.folder import reading
from mhprobe.report.runs.names import names as names_of
from mhprobe.report.runs.run import Run, column, jobs, read_run, settings
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm

log = logging.getLogger(__name__)

Estimate = tuple[float, float, float]  # a value and its interval


def write_comparison(folders: Sequence[Path], to: Path) -> Path:
    """One page about two or more runs. UserError if one is no run, or if there is only one."""
    if len(folders) < 2:
        raise UserError("report: a comparison needs two or more runs.")
    with reading(Path(", ".join(map(str, folders)))):
        return write(Path(to), _page([read_run(folder) for folder in folders]).encode())


def finish_sweep(folder: Path) -> Path | None:
    """Write ``folder/report.html`` at the end of a sweep, its jobs side by side. Never fails the sweep.

    None where fewer than two jobs have results, or after a line in the log.
    """
    runs = jobs(folder)
    if len(runs) < 2:
        return None
    try:
        return write_comparison(runs, folder / "report.html")
    except Exception as error:  # the jobs' results are there
        log.warning("report.html: %s. Try again with: python -m mhprobe.report %s", error, folder)
        return None


def _page(runs: Sequence[Run]) -> str:
    names = names_of(runs)
    heads = atlas.heads(runs[0])
    measures = _measures(runs)
    what = " or ".join(dict.fromkeys(curves.scored(run) for run in runs if curves.lines(run)))
    paired = outcomes.pairs([run.outcomes() for run in runs], names)
    tables = [
        *_table("accuracies on the same images", [pair for pair in paired if not pair["untested"]]),
        *_table(f"{what} at as many heads masked", _curve_rows(runs, names)),
        *_table("heads that changed", _head_rows(names, heads, measures)),
        *_table("heads that went", _kept_rows(runs, names, heads)),
        *_table(
            "claims", outcomes.by_network({name: run.rows("claims") for run, name in zip(runs, names, strict=True)})
        ),
        *_table("settings that differ", _settings(runs, names)),
    ]
    lines = [{**line, "run": name} for run, name in zip(runs, names, strict=True) for line in curves.lines(run)]
    return render(
        "compare.html.jinja",
        {"heads": heads, "runs": names, "measures": measures, "lines": lines, "scored": what, "tables": tables},
        ["common.js", "compare.js", "tables.js"],
        title=f"{len(runs)} runs side by side",
        words=[*_accuracies(runs, names, paired), *_changed(names, measures), *_numbers_only(runs, names, measures)],
        runs=list(zip(names, map(facts, runs), strict=True)),
        scored=what,
        has={"heads": bool(heads and measures), "curves": bool(lines)},
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return b - a with Newcombe's interval from those of both (1998, method 10), as for independent samples."""
    gap = b[0] - a[0]
    return (
        gap,
        gap - math.hypot(b[0] - b[1], a[2] - a[0]),
        gap + math.hypot(b[2] - b[0], a[0] - a[1]),
    )


def _accuracies(runs: Sequence[Run], names: Sequence[str], paired: Sequence[Mapping[str, Any]]) -> list[str]:
    known = {name: found for run, name in zip(runs, names, strict=True) if (found := words.accuracy(run))}
    said = [
        f"{name}: test accuracy {words.percent(share)} ({100 * low:.1f} to {100 * high:.1f}, {images} images)."
        for name, (share, low, high, images) in known.items()
    ]
    if names[0] in known:
        first = known[names[0]]
        to_first = {pair["run_b"]: pair for pair in paired if pair["run_a"] == names[0]}
        for name in [name for name in known if name != names[0]]:
            said.append(outcomes.said(to_first[name]))
            if not to_first[name]["untested"]:
                continue
            gap, low, high = (100 * value for value in difference(first[:3], known[name][:3]))
            more = "" if known[name][3] == first[3] else " They were tested on different numbers of images."
            verdict = f"{'not ' if low <= 0 <= high else ''}told apart from 0"
            said.append(
                f"{name} minus {names[0]}: {gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}), "
                f"{verdict}.{more}"
            )
    return said or ["These runs have no test accuracy to compare."]


def _measures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Measures that all runs have for as many heads: their values and intervals, run by run."""
    found = [{measure["key"]: measure for measure in atlas.measures(run)} for run in runs]
    shared = []
    for key, first in found[0].items():
        own = [measures.get(key) for measures in found]
        columns = [measure["columns"].get("value") if measure else None for measure in own]
        if any(values is None or len(values) != len(columns[0] or []) for values in columns):
            continue
        shared.append(
            {
                **{name: first[name] for name in ("key", "name", "label", "about")},
                "runs": [
                    {"value": values, **{name: measure and measure[name] for name in ("low", "high", "freedom")}}
                    for measure, values in zip(own, columns, strict=True)
                ],
            }
        )
    return shared


def _head_rows(
    names: Sequence[str], heads: Sequence[Mapping[str, Any]], measures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for measure in measures:
        first = measure["runs"][0]
        for name, other in zip(names[1:], measure["runs"][1:], strict=True):
            ranks = _ranks(first["value"]), _ranks(other["value"])
            for head in heads:
                at = head["id"]
                a, b = _estimate(first, at), _estimate(other, at)
                if a is None or b is None:
                    continue
                gap, low, high = difference(a, b)
                sure = first["low"] is not None and other["low"] is not None
                rows.append(
                    {
                        "measure": measure["key"],
                        "run": name,
                        "head": at,
                        "block": head["block"],
                        "index": head["index"],
                        "first": a[0],
                        "this": b[0],
                        "difference": gap,
                        "low": low if sure else None,
                        "high": high if sure else None,
                        "changed": int(low > 0 or high < 0) if sure else None,
                        "rank_first": ranks[0][at],
                        "rank_this": ranks[1][at],
                        "rank_moved": ranks[1][at] - ranks[0][at],
                    }
                )
    return sorted(rows, key=lambda row: -abs(row["rank_moved"]))


def _changed(names: Sequence[str], measures: Sequence[Mapping[str, Any]]) -> list[str]:
    said = []
    for measure in measures:
        first = measure["runs"][0]
        for name, other in zip(names[1:], measure["runs"][1:], strict=True):
            if first["low"] is None or other["low"] is None:
                continue
            both = [(_estimate(first, i), _estimate(other, i)) for i in range(len(first["value"]))]
            gaps = [difference(a, b) for a, b in both if a is not None and b is not None]
            freedom = min((run["freedom"] for run in (first, other) if run["freedom"]), default=None)
            if not gaps or freedom is None:
                continue
            gap, low, high = torch.tensor(gaps, dtype=torch.float64).unbind(1)
            sure = holm(p_of_interval(gap, torch.where(gap > 0, gap - low, high - gap), freedom)) < 0.05
            said.append(
                f"By {measure['name']} {int(sure.sum())} of {len(gaps)} heads of {name} differ from those of "
                f"{names[0]} (Holm over heads, 5 %; the runs taken as independent)."
            )
    return said


def _numbers_only(runs: Sequence[Run], names: Sequence[str], measures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs whose heads are matched by number alone: their networks were not read from the same weights."""
    weights = [run.config.get("weights") for run in runs]
    others = [
        name
        for run, name, own in zip(runs[1:], names[1:], weights[1:], strict=True)
        if run.folder != runs[0].folder and (own is None or own != weights[0])
    ]
    if not others or not measures:
        return []
    return [
        f"Heads are matched by their numbers. {' and '.join(others)}: trained apart from {names[0]}, as far as the "
        f"runs say, so heads of one number need not do the same in both. Compare layers, or the whole spread of heads."
    ]


def _curve_rows(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """At every number of heads that the first run and another have on the same curve, of the same score."""
    lines = [
        {(line["curve"], line["split"]): line["points"] for line in curves.lines(run)}
        if curves.scored(run) == curves.scored(runs[0])
        else {}
        for run in runs
    ]
    rows = []
    for (curve, split), points in lines[0].items():
        for name, others in zip(names[1:], lines[1:], strict=True):
            at = {point["heads_masked"]: point for point in others.get((curve, split), [])}
            for a in points:
                b = at.get(a["heads_masked"])
                if b is None or a["low"] is None or b["low"] is None:
                    continue
                gap = difference(*((p["accuracy"], p["low"], p["high"]) for p in (a, b)))
                rows.append(
                    {
                        **{"curve": curve, "split": split, "heads_masked": a["heads_masked"], "run": name},
                        **{"first": a["accuracy"], "this": b["accuracy"]},
                        **dict(zip(("difference", "low", "high"), gap, strict=True)),
                    }
                )
    return rows


def _kept_rows(runs: Sequence[Run], names: Sequence[str], heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences between runs that chose heads (pruning, learned gates)."""
    tables = [next((t for _, e, t in run.of_kind("per_head") if e.decides), None) for run in runs]
    if any(table is None or len(table.rows) != len(heads) for table in tables):
        return []
    kept = [column(table, "kept") for table in tables if table is not None]
    return [
        {"head": head["id"], "block": head["block"], "index": head["index"], **dict(zip(names, values, strict=True))}
        for head, *values in zip(heads, *kept, strict=True)
        if len(set(values)) > 1
    ]


def _settings(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    flat = [settings(run) for run in runs]
    keys = sorted(set().union(*flat))
    return [
        {"setting": key, **{name: settings.get(key, "") for name, settings in zip(names, flat, strict=True)}}
        for key in keys
        if len({settings.get(key, "") for settings in flat}) > 1
    ]


def _table(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tables in the page's form; none where there are no rows."""
    if not rows:
        return []
    return [{"name": name, "columns": list(rows[0]), "rows": [atlas.short(list(row.values())) for row in rows]}]


def _estimate(run: Mapping[str, Any], at: int) -> Estimate | None:
    value = run["value"][at]
    if value is None:
        return None
    low, high = ((run[name] or run["value"])[at] for name in ("low", "high"))
    return value, value if low is None else low, value if high is None else high


def _ranks(values: Sequence[Any]) -> list[int]:
    """1 for the largest; what is missing comes last."""
    return [1 + sum(v is not None and (w is None or v > w) for v in values) for w in values]
