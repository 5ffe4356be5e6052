"""Page of several runs, each compared with the first: accuracy, masking curves, and heads that changed.

Accuracies on the same test images are compared image by image. Every other difference has a 95 %
interval for independent runs, which is conservative for runs on the same images.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata

from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.pages.html.page import facts_shown, render
from mhprobe.pages.several import (
    FEW,
    answers,
    by_network,
    head_by_head,
    of_steps,
    rows_of_pairs,
    sentence,
    swept,
)
from mhprobe.report.result import Result
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.folder import reading
from mhprobe.report.runs.run import Run, differing, jobs, read_runs
from mhprobe.report.runs.run import names as names_of
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm, significant

log = logging.getLogger(__name__)
NO_ACCURACY = "These runs have no test accuracy to compare."

Estimate = tuple[float, float, float]  # a value and its interval


def write_comparison(runs: Sequence[Run], to: Path, ranking: Result | None = None) -> Path:
    """Write one page about two or more runs.

    ranking: of ``over_networks``. UserError for one run, or for no run.
    """
    if len(runs) < 2:
        raise UserError("compare: a comparison needs two or more runs.")
    with reading(Path(", ".join(str(run.folder) for run in runs))):
        return write(Path(to), _page(runs, ranking).encode())


def finish_sweep(folder: Path) -> Path | None:
    """Write ``folder/report.html`` of a sweep's jobs. Never fails the sweep.

    Returns None if fewer than two jobs have results, or, after a line in the log, if the page
    fails.
    """
    try:
        return (
            write_comparison(read_runs(runs), folder / "report.html")
            if len(runs := jobs(folder)) > 1
            else None
        )
    except Exception as error:  # the jobs' results are there
        log.warning("report.html: %s. Try again with: python -m mhprobe.report %s", error, folder)
        return None


def _page(runs: Sequence[Run], ranking: Result | None) -> str:
    names = names_of(runs)
    heads = atlas.heads_listed(runs[0])
    measures = _measures(runs)
    what = " or ".join(dict.fromkeys(atlas.score_name(run) for run in runs if atlas.lines(run)))
    paired, stepped = rows_of_pairs(runs, names), swept(runs)
    settings, ranked = (
        differing(runs).items(),
        ranking.table.dicts() if ranking and ranking.table else [],
    )
    accuracies = (
        _accuracies(runs, names, paired) if not stepped else _of_sweep(runs, stepped, paired)
    )
    answered = words.best_methods(ranked, "networks") + answers(runs, names)
    accuracies = answered + accuracies or [NO_ACCURACY]
    changed, counts = _heads(names, heads, measures)
    measured_alone = not answered and not any(map(atlas.lines, runs))  # asked for heads
    first = [*counts, *accuracies] if measured_alone else [*accuracies, *counts]
    rows: dict[str, list[dict[str, Any]]] = {
        "methods of pruning over networks": ranked,
        "masked networks": stepped,
        "accuracies on the same images": [pair for pair in paired if not pair["untested"]],
        f"{what} at as many heads masked": _curve_rows(runs, names),
        "heads that changed": changed,
        "heads that went": _kept_rows(runs, names, heads),
        "claims": by_network(
            {name: run.rows("claims") for run, name in zip(runs, names, strict=True)}
        ),
        "settings that differ": [
            {"setting": key, **dict(zip(names, of, strict=True))} for key, of in settings
        ],
    }
    tables = [_table(name, of) for name, of in rows.items() if of]
    lines = _lines(runs, names, stepped)
    return render(
        "compare.html.jinja",
        {
            "heads": heads,
            "runs": names,
            "measures": measures,
            "lines": lines,
            "swept": bool(stepped),
            "scored": what,
            "tables": tables,
        },
        ["common.js", "compare.js", "tables.js"],
        title=f"{len(runs)} runs side by side",
        words=words.unread(runs)
        + first
        + head_by_head(runs)
        + _numbers_only(runs, names, measures),
        runs=list(zip(names, map(facts_shown, runs), strict=True)),
        scored=what,
        swept=bool(stepped),
        has={"heads": bool(heads and measures), "curves": bool(lines)},
    )


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a table of the page. rows: one or more, with the same columns."""
    short = [atlas.few_digits(list(row.values())) for row in rows]
    return {"name": name, "columns": list(rows[0]), "rows": short}


def _lines(
    runs: Sequence[Run], names: Sequence[str], stepped: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the masking curves of all runs; of a sweep over steps one for each group. stepped: rows of ``swept``."""
    lines = [
        {**line, "run": name}
        for run, name in zip(runs, names, strict=True)
        for line in atlas.lines(run)
    ]
    return _joined(lines, {row["run"]: row["group"] for row in stepped}) if stepped else lines


def difference(a: Estimate, b: Estimate) -> Estimate:
    """Return b - a with Newcombe's interval from those of both (1998, method 10), as for independent samples."""
    gap = b[0] - a[0]
    return (
        gap,
        gap - math.hypot(b[0] - b[1], a[2] - a[0]),
        gap + math.hypot(b[2] - b[0], a[0] - a[1]),
    )


def _accuracies(
    runs: Sequence[Run], names: Sequence[str], paired: Sequence[Mapping[str, Any]]
) -> list[str]:
    accuracies = {
        name: accuracy
        for run, name in zip(runs, names, strict=True)
        if (accuracy := words.accuracy(run))
    }
    text = [
        f"{name}: test accuracy {words.percent_of(share)} ({100 * low:.1f} to {100 * high:.1f}, "
        f"{images} images)."
        for name, (share, low, high, images) in accuracies.items()
    ]
    to_first = {pair["run_b"]: pair for pair in paired if pair["run_a"] == names[0]}
    if (first := accuracies.pop(names[0], None)) is None:
        return text
    for name, other in accuracies.items():
        text.append(sentence(to_first[name]))
        if to_first[name]["untested"]:
            gap, low, high = (100 * value for value in difference(first[:3], other[:3]))
            more = (
                "" if other[3] == first[3] else " They were tested on different numbers of images."
            )
            verdict = f"{'not ' if low <= 0 <= high else ''}told apart from 0.{more}"
            ends = f"95 % interval {low:+.1f} to {high:+.1f}"
            text.append(f"{name} minus {names[0]}: {gap:+.1f} points ({ends}), {verdict}")
    return text


def _of_sweep(
    runs: Sequence[Run],
    stepped: Sequence[Mapping[str, Any]],
    paired: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return sentences on the masked networks of a sweep, the whole network beside them, and few paired tests."""
    text = of_steps(stepped)
    whole = list(dict.fromkeys(of for run in runs if (of := words.accuracy(run)) is not None))
    text += [
        f"The whole network: test accuracy {words.percent_of(share)} ({100 * low:.1f} to "
        f"{100 * high:.1f}, {images} images)."
        for share, low, high, images in whole
    ]
    units = {unit for run in runs for unit in _units(run)}
    at_step: dict[tuple[str, int], set[float]] = {}
    for row in stepped:
        at_step.setdefault((row["group"], row["step"]), set()).add(row["heads_masked"])
    if len(units) > 1 and any(len(heads) > 1 for heads in at_step.values()):
        text.append(
            f"The curves mask different units ({', '.join(sorted(units))}), so one step takes more "
            "heads in one curve than in another: compare them at equal heads."
        )
    return text + [sentence(pair) for pair in paired if len(paired) <= FEW]


def _units(run: Run) -> list[str]:
    """Return the units of a run's curves, as far as its settings say."""
    masking = run.config.get("masking")
    curves = masking.get("curves") if isinstance(masking, Mapping) else None
    parts = curves.values() if isinstance(curves, Mapping) else []
    return [str(part["units"]) for part in parts if isinstance(part, Mapping) and "units" in part]


def _joined(lines: Sequence[Mapping[str, Any]], groups: Mapping[str, str]) -> list[dict[str, Any]]:
    """Join the points of jobs that differ in their step: a line per curve, split and group, by heads masked."""
    joined: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        group = groups.get(line["run"], line["run"])
        key = group, line["curve"], line["split"]
        whole = joined.setdefault(key, {**line, "run": group, "points": []})
        whole["points"] = sorted(
            [*whole["points"], *line["points"]], key=lambda point: point["heads_masked"]
        )
    return list(joined.values())


def _measures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the measures that all runs have for as many heads: values and intervals, run by run."""
    measures = [{measure["key"]: measure for measure in atlas.measures(run)} for run in runs]
    shared = []
    for key, first in measures[0].items():
        same = [
            of[key] for of in measures if key in of and len(of[key]["columns"].get("value", ())) > 0
        ]
        if len(same) < len(runs) or len({len(measure["columns"]["value"]) for measure in same}) > 1:
            continue
        columns = [
            {
                "value": measure["columns"]["value"],
                **{name: measure[name] for name in ("low", "high", "freedom")},
            }
            for measure in same
        ]
        shared.append(
            {**{name: first[name] for name in ("key", "name", "label", "about")}, "runs": columns}
        )
    return shared


def _heads(
    names: Sequence[str], heads: Sequence[Mapping[str, Any]], measures: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare head by head with the first run: a row each, by its change of rank; and sentences on how many differ."""
    rows: list[dict[str, Any]] = []
    text: list[str] = []
    for measure in measures:
        first, *others = measure["runs"]
        for name, other in zip(names[1:], others, strict=True):
            changes = _changes(first, other)
            about = {"measure": measure["key"], "run": name}
            for change in changes:
                head = heads[change["head"]]
                place = {"block": head["block"], "index": head["index"]}
                rows.append({**about, "head": change["head"], **place, **change})
            count = _differing(first, other, changes)
            if count is not None:
                text.append(
                    f"By {measure['name']} {count} of {len(changes)} heads of {name} "
                    "differ from those of "
                    f"{names[0]} (Holm over heads, 5 %; the runs taken as independent)."
                )
    return sorted(rows, key=lambda row: -abs(row["rank_moved"])), text


def _changes(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the change of each head that both runs have a value of: a difference, and ranks.

    low, high, changed: None where one of the runs has no interval.
    """
    sure = None not in (first["low"], other["low"])
    changes: list[dict[str, Any]] = []
    for head, (before, after) in enumerate(zip(_ranks(first), _ranks(other), strict=True)):
        a = _estimate(first, head)
        b = _estimate(other, head)
        if a is None or b is None:
            continue
        gap, low, high = difference(a, b)
        change: dict[str, Any] = {"head": head, "first": a[0], "this": b[0], "difference": gap}
        change |= {"low": low if sure else None, "high": high if sure else None}
        change |= {"changed": int(low > 0 or high < 0) if sure else None}
        change |= {"rank_first": before, "rank_this": after, "rank_moved": after - before}
        changes.append(change)
    return changes


def _ranks(run: Mapping[str, Any]) -> list[int]:
    """Return the rank of each head's value: 1 for the largest, the missing last."""
    down = [math.inf if value is None else -value for value in run["value"]]
    ranks: list[int] = rankdata(down, "min").astype(int).tolist()
    return ranks


def _differing(
    first: Mapping[str, Any], other: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return the number of heads that differ, by Holm over heads at 5 %; None without intervals or freedom."""
    freedom = min((run["freedom"] for run in (first, other) if run["freedom"]), default=None)
    if not changes or changes[0]["low"] is None or freedom is None:
        return None
    gaps = [[change[key] for key in ("difference", "low", "high")] for change in changes]
    gap_A, low_A, high_A = torch.tensor(gaps, dtype=torch.float64).unbind(1)
    half_A = torch.where(gap_A > 0, gap_A - low_A, high_A - gap_A)
    return int(significant(holm(p_of_interval(gap_A, half_A, freedom))).sum())


def _numbers_only(
    runs: Sequence[Run], names: Sequence[str], measures: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a warning if heads are matched by number alone: networks that were not read from the same weights."""
    weights = [run.config.get("weights") for run in runs]
    further = [
        of for of in zip(runs, names, weights, strict=True) if of[0].folder != runs[0].folder
    ]
    others = [name for _, name, file in further if file is None or file != weights[0]]
    if not others or not measures:
        return []
    return [
        f"Heads are matched by their numbers. {' and '.join(others)}: trained apart from "
        f"{names[0]}, as far as the "
        "runs say, so heads of one number need not do the same in both. Compare layers, or the "
        "whole spread of heads."
    ]


def _curve_rows(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per number of heads that the first run and another have on the same curve, of the same score."""
    lines = [
        {(line["curve"], line["split"]): line["points"] for line in atlas.lines(run)}
        if atlas.score_name(run) == atlas.score_name(runs[0])
        else {}
        for run in runs
    ]
    rows = []
    for (curve, split), points in lines[0].items():
        for name, others in zip(names[1:], lines[1:], strict=True):
            at = {point["heads_masked"]: point for point in others.get((curve, split), [])}
            for a in points:
                if (b := at.get(a["heads_masked"])) is None or None in (a["low"], b["low"]):
                    continue
                gap, low, high = difference(*((p["accuracy"], p["low"], p["high"]) for p in (a, b)))
                row = {
                    "curve": curve,
                    "split": split,
                    "heads_masked": a["heads_masked"],
                    "run": name,
                }
                row |= {
                    "first": a["accuracy"],
                    "this": b["accuracy"],
                    "difference": gap,
                    "low": low,
                    "high": high,
                }
                rows.append(row)
    return rows


def _kept_rows(
    runs: Sequence[Run], names: Sequence[str], heads: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the heads that not all runs keep (pruning, learned gates)."""
    tables = [
        next((table for _, entry, table in run.of_kind("per_head") if entry.decides), None)
        for run in runs
    ]
    kept = [atlas.of_units(table, "head").column("kept") if table else [] for table in tables]
    if any(len(column) != len(heads) for column in kept):
        return []
    return [
        {
            "head": head["id"],
            "block": head["block"],
            "index": head["index"],
            **dict(zip(names, values, strict=True)),
        }
        for head, *values in zip(heads, *kept, strict=True)
        if len(set(values)) > 1
    ]


def _estimate(run: Mapping[str, Any], at: int) -> Estimate | None:
    value = run["value"][at]
    low, high = (
        value if (end := (run[name] or run["value"])[at]) is None else end
        for name in ("low", "high")
    )
    return None if value is None else (value, low, high)
