"""Several runs in one table and one figure: accuracy, masking curves, and how well runs agree about heads.

Runs whose settings are the same but for those of ``over`` (the seed) are a group. A group has a mean over its runs with
Student's 95 % interval: what another run would give. Beside it stands the interval over images of single runs, which is
what another set of images would give.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mhprobe.errors import UserError
from mhprobe.report import outcomes
from mhprobe.report.figures import runs as runs_figure
from mhprobe.report.report import Result, Sample
from mhprobe.report.runs import atlas, curves, words
from mhprobe.report.runs.names import MOST, names, said, typed_apart
from mhprobe.report.runs.run import Run, expand, read_run, settings
from mhprobe.report.tables import Table, from_rows
from mhprobe.stats.agreement import agreement
from mhprobe.stats.significance import t_interval

FEW = 6  # pairs of runs: four runs have as many
STEP = "masking.step"  # runs that differ in it hold points of the same curve


class One(NamedTuple):
    """A run among others.

    own: the settings that differ between the runs. group: the name of the runs that differ in nothing but ``over``.
    by: up to three settings that tell the groups apart.
    """

    name: str
    run: Run
    own: dict[str, str]
    group: str
    by: dict[str, str]


def several(folders: Sequence[Path], over: Sequence[str] = ("seed",)) -> dict[str, Result]:
    """The results ``runs``, ``groups``, ``grid``, ``paired``, ``curves``, ``agreement``, ``claims``.

    over: settings by the end of their names.
    folders: of runs, or of sweeps. UserError for fewer than two runs, and for a folder that holds none.
    """
    found = [read_run(folder) for folder in expand(folders)]
    if len(found) < 2:
        raise UserError(f"compare: expected two or more runs, got {len(found)}. Give their folders, or a sweep's.")
    ones = told_apart(found, over)
    paired = outcomes.pairs([one.run.outcomes() for one in ones], [one.name for one in ones])
    results = {"runs": _runs(ones), "groups": _groups(ones), "grid": _grid(ones), "paired": Result(from_rows(paired))}
    results |= {"curves": _curves(ones), "agreement": _agreement(ones), "claims": _claims(ones)}
    return {name: result for name, result in results.items() if result.table is not None and result.table.rows}


def lines(results: Mapping[str, Result]) -> list[str]:
    """Return the groups' accuracies, a line each, for a terminal; of few runs also their differences, pair by pair."""
    table = results["groups"].table if "groups" in results else None
    said = []
    for row in table.rows if table is not None else ():
        group, runs, mean, _, low, high, half = row
        over = f", 95 % over {runs} runs {100 * low:.2f} to {100 * high:.2f}" if runs > 1 else ""
        said.append(f"{group}: test accuracy {100 * mean:.2f} %{over}, over images of a run +- {100 * half:.2f}")
    paired = results["paired"].table
    assert paired is not None
    pairs = [dict(zip(paired.columns, row, strict=True)) for row in paired.rows]
    return said + [outcomes.said(pair) for pair in pairs] if len(pairs) <= FEW else said


def inert(result: Result) -> Result:
    """With a table that a spreadsheet takes for data: what begins like a formula gets an apostrophe before it.

    Texts come from the settings of others' runs, and ``=HYPERLINK(...)`` in one would be a formula that is run.
    """
    if result.table is None:
        return result
    columns, rows, kind = result.table
    table = Table([_no_formula(name) for name in columns], [[_no_formula(cell) for cell in row] for row in rows], kind)
    return result._replace(table=table)


def _no_formula(cell: Any) -> Any:
    """Numbers stay numbers, also as text, e.g. "-0.5".

    >>> [_no_formula(cell) for cell in ("=1+1", "@SUM(A1)", "-0.5", "-x", "cat", -1)]
    ["'=1+1", "'@SUM(A1)", '-0.5', "'-x", 'cat', -1]
    """
    if not isinstance(cell, str) or not cell.lstrip().startswith(("=", "+", "-", "@")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def about(folders: Sequence[Path]) -> tuple[str, Sample]:
    """The data that runs were tested on, and on how many images, for the small print of figures; empty if unknown."""
    runs = [read_run(folder) for folder in expand(folders)]
    data = dict.fromkeys(str(run.model["data"]) for run in runs if run.model.get("data"))
    counts = sorted({found[3] for run in runs if (found := words.accuracy(run)) is not None})
    images = Sample(counts[0], "test") if counts else Sample()
    if len(counts) > 1:
        images = images._replace(words=f"n = {counts[0]:,} to {counts[-1]:,} test images")
    return ", ".join(data), images


def told_apart(runs: Sequence[Run], over: Sequence[str]) -> list[One]:
    """Every run with a name, and what tells it from the others. UserError for an ``over`` that no run has set."""
    every = [settings(run) for run in runs]
    known = {part for key in set().union(*every) for part in (key, key.split(".")[-1])} | {"seed"}
    if unknown := [key for key in over if key not in known]:
        close = get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else f", expected one such as {', '.join(sorted(known)[:3])}."
        raise UserError(f"compare: over: no run has a setting {unknown[0]}{hint}")
    keys = sorted(key for key in set().union(*every) if len({each.get(key, "") for each in every}) > 1)
    shown = [key for key in keys if not key.startswith(("hydra", "out", "cache_dir"))]
    by = [key for key in shown if key.split(".")[-1] not in over and key not in over and key != STEP]
    groups = [{key: each.get(key, "") for key in by} for each in every]
    typed = typed_apart(runs, without=[*over, STEP])
    telling = typed if any(map(said, typed)) else [dict(list(group.items())[:MOST]) for group in groups]
    return [
        One(name, run, {key: each.get(key, "") for key in shown}, group, settings_of)
        for name, run, each, group, settings_of in zip(
            names(runs), runs, every, _group_names(groups, telling), telling, strict=True
        )
    ]


def _group_names(groups: Sequence[dict[str, str]], telling: Sequence[dict[str, str]]) -> list[str]:
    """A name for every run's group: of settings that tell it, with a number where other groups have the same ones."""
    numbers: dict[str, list[dict[str, str]]] = {}
    found = []
    for group, settings_of in zip(groups, telling, strict=True):
        text = (said(settings_of) or "as it is") if group else "all runs"
        alike = numbers.setdefault(text, [])
        if group not in alike:
            alike.append(group)
        found.append((text, alike.index(group)))
    return [text if len(numbers[text]) == 1 else f"{text} ({number + 1})" for text, number in found]


def _runs(ones: Sequence[One]) -> Result:
    """A row per run, and the figure of all of them."""
    known = [(one, found) for one in ones if (found := words.accuracy(one.run)) is not None]
    rows = [
        {
            **{"run": one.name, "group": one.group, **one.own},
            **dict(zip(("accuracy", "low", "high", "images"), found, strict=True)),
        }
        for one, found in known
    ]
    if not rows:
        return Result()
    return Result(from_rows(rows), runs_figure.runs(rows, _groups(ones).table), drawn="runs")


def _groups(ones: Sequence[One]) -> Result:
    """A row per group: mean and spread over its runs, and beside it the interval over images of its single runs."""
    rows = []
    groups: dict[str, list[One]] = {}
    for one in ones:
        groups.setdefault(one.group, []).append(one)
    for group, members in groups.items():
        found = [each for one in members if (each := words.accuracy(one.run)) is not None]
        if found:
            shares = [each[0] for each in found]
            mean, deviation, low, high = _spread(shares)
            half = statistics.fmean((each[2] - each[1]) / 2 for each in found)
            rows.append(
                {
                    **{"group": group, "runs": len(found), "accuracy": mean, "deviation": deviation},
                    **{"low": low, "high": high, "half_width_over_images": half},
                }
            )
    return Result(from_rows(rows)) if rows else Result()


def _grid(ones: Sequence[One]) -> Result:
    """Of runs that differ in two settings or more, mean accuracy with a column for each value of the last one."""
    keys = list(dict.fromkeys(key for one in ones for key in one.by))
    if len(keys) < 2:
        return Result()
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for one in ones:
        if (each := words.accuracy(one.run)) is not None:
            *rest, last = (one.by.get(key, "") for key in keys)
            found.setdefault(tuple(rest), {}).setdefault(last, []).append(each[0])
    if not found:
        return Result()
    across = sorted({value for row in found.values() for value in row}, key=_in_order)
    rows = [
        {
            **dict(zip(keys, rest, strict=False)),
            **{f"{keys[-1]}={value}": statistics.fmean(row[value]) if value in row else "" for value in across},
        }
        for rest, row in sorted(found.items(), key=lambda item: [_in_order(value) for value in item[0]])
    ]
    return Result(from_rows(rows))


def _in_order(value: str) -> tuple[float, str]:
    """Numbers by size, then words."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _curves(ones: Sequence[One]) -> Result:
    """A row per group, curve, split and number of heads masked. of: what "accuracy" is, which may differ by run."""
    seen: dict[tuple[str, str, str, float, str], dict[str, tuple[Any, ...]]] = {}
    for one in ones:
        series = ", ".join(f"{key}={value}" for key, value in one.own.items() if key != STEP)
        of = curves.scored(one.run)
        for line in curves.lines(one.run):
            for point in line["points"]:
                key = (one.group, line["curve"], line["split"], float(point["heads_masked"]), of)
                seen.setdefault(key, {})[series] = (point["accuracy"], point["low"], point["high"])
    rows = []
    groups = list(dict.fromkeys(one.group for one in ones))
    for (group, curve, split, heads, of), points in sorted(
        seen.items(), key=lambda at: (groups.index(at[0][0]), at[0])
    ):
        mean, deviation, low, high = _spread([each[0] for each in points.values()])
        if len(points) == 1:  # what is left is the interval over images
            ((_, low, high),) = points.values()
        rows.append(
            {
                **{"group": group, "curve": curve, "split": split, "heads_masked": heads, "runs": len(points)},
                **{"accuracy": mean, "deviation": deviation, "low": low, "high": high, "of": of},
            }
        )
    return Result(from_rows(rows), runs_figure.run_curves(rows), drawn="run_curves") if rows else Result()


def _agreement(ones: Sequence[One], k: int = 10) -> Result:
    """A row per measure and two runs of the same layout: do they rank the heads alike?"""
    found = [{each["key"]: each for each in atlas.measures(one.run)} for one in ones]
    rows = []
    for (a, first), (b, second) in itertools.combinations(zip(ones, found, strict=True), 2):
        if atlas.heads(a.run) != atlas.heads(b.run):
            continue
        for key in [key for key in first if key in second]:
            values = {one.name: _values(each[key]) for one, each in ((a, first), (b, second))}
            alike = agreement(values, k)
            numbers = (of_two[0, 1].item() for of_two in (alike.spearman, alike.overlap, alike.chance))
            numbered = dict(zip(("spearman", "overlap", "chance"), numbers, strict=True))
            rows.append({"measure": key, "run_a": a.name, "run_b": b.name, **numbered, "k": alike.k})
    return Result(from_rows(rows), runs_figure.run_agreement(rows), drawn="run_agreement") if rows else Result()


def _claims(ones: Sequence[One]) -> Result:
    """Verdicts on claims, of the runs that judged any."""
    names = [str(one.run.config.get("name")) for one in ones]
    told_apart = names if len(set(names)) == len(names) else [one.name for one in ones]
    return outcomes.matrix({name: one.run.rows("claims") for name, one in zip(told_apart, ones, strict=True)})


def _values(measure: Mapping[str, Any]) -> torch.Tensor:
    columns = measure["columns"]
    values = columns.get("value") or next(iter(columns.values()))
    return torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)


def _spread(values: Sequence[float]) -> tuple[float, float | str, float | str, float | str]:
    """Of shares: mean, deviation and Student's 95 % interval over runs, cut at 0 and 1; "" for what one cannot tell."""
    if len(values) < 2:
        return values[0], "", "", ""
    column = torch.tensor(values, dtype=torch.float64)[:, None]
    mean, low, high = (each.item() for each in t_interval(column))
    return mean, statistics.stdev(values), max(0.0, low), min(1.0, high)
