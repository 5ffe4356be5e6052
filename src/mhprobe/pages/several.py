"""Comparison of runs: accuracy, masking curves, agreement about heads, and a paired test of every two runs.

Runs whose settings differ only in those of ``over`` (the seed) are a group. A group has the mean
over its runs with Student's 95 % interval, which predicts another run; the interval over images of
a single run predicts other images. Two runs on the same images have McNemar's exact test.
"""

import contextlib
import itertools
import math
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from mhprobe.errors import UserError, nearest
from mhprobe.io.tensors import Outcomes
from mhprobe.pages.benches import RANKING, over_networks
from mhprobe.report.figures import runs as figure
from mhprobe.report.figures.claims import claims_matrix
from mhprobe.report.figures.pruned import pareto
from mhprobe.report.report import Result, Sample
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.run import (
    ASIDE,
    MOST,
    Run,
    as_typed,
    differing,
    names,
    settings,
    typed_apart,
)
from mhprobe.report.tables import Table, from_rows
from mhprobe.stats.agreement import agreement
from mhprobe.stats.significance import holm, paired, t_interval
from mhprobe.weights.description import FREE
from mhprobe.weights.hub import find_weights

RIGHT = "test accuracy", "a better network"
MANY = 12  # sentences on masked networks
FEW = 6  # pairs of runs: four runs have as many
UNTESTED = dict.fromkeys(("difference", "low", "high", "lost", "won", "p", "p_holm", "images"), "")
STEPS = "masked_networks"  # a row per run of one step, and curve
STEP = "masking.step"  # runs that differ in it hold points of the same curve
ACCURACY = ("accuracy", "low", "high", "images")
TRAINED = ("pretrained", "checkpoint", *FREE)
"""What a network's description says of its training or its speed alone."""
ASKED = ("stages", "curves", "claims", "maps")  # tables of runs that answer more than an accuracy


class One(NamedTuple):
    """A run among others.

    values: of all settings that differ between the runs. group: the name of the runs that differ
    only in ``over``.
    by: up to three settings that distinguish the groups. accuracy: of ``words.asked``.
    """

    name: str
    run: Run
    values: dict[str, str]
    group: str
    by: dict[str, str]
    accuracy: tuple[float, float, float, int] | None


def several(runs: Sequence[Run], over: Sequence[str] = ("seed",)) -> dict[str, Result]:
    """Compare runs: ``runs``, ``groups``, ``grid``, ``paired``, ``curves``, ``agreement``, ``speed``, ``claims``.

    ``masked_networks``: of runs with ``masking.step``, whose accuracy and paired tests are those of
    the masked networks. ``prunebench_ranking``: of ``over_networks``. over: settings by the end of their names. Raises
    UserError for fewer than two runs, and for an ``over`` that no run has set.
    """
    if len(runs) < 2:
        raise UserError(
            f"compare: expected two or more runs, got {len(runs)}. Give their folders, or a "
            "sweep's."
        )
    ones = _ones(runs, over)
    groups = from_rows(_groups(ones))
    stepped = _steps(ones)
    names_of_runs = [one.name for one in ones]
    networks = [str(run.config.get("name")) for run in runs]
    if len(set(networks)) < len(networks):
        networks = names_of_runs
    tested = rows_of_pairs(runs, names_of_runs)
    timed = [row for one in ones if (row := _timed(one))]
    results = {
        "runs": _drawn(_accuracies(ones), "runs", lambda rows: figure.runs(rows, groups), RIGHT),
        "groups": Result(groups).saying(*RIGHT),
        STEPS: Result(from_rows(stepped)).saying(
            "test accuracy of the masked network", "the masked heads are needed less"
        ),
        "grid": Result(from_rows(_grid(ones))).saying(*RIGHT),
        "paired": Result(from_rows(tested)).saying(
            "test accuracy, of run_b less that of run_a", "run_b is better"
        ),
        "curves": _drawn(
            _curves(ones),
            "run_curves",
            figure.run_curves,
            ("accuracy, or what the column of says", "the masked heads are needed less"),
        ),
        "agreement": _drawn(
            _agreement(ones),
            "run_agreement",
            figure.run_agreement,
            ("rank correlation over heads", "the runs rank the heads more alike"),
        ),
        "speed": _drawn(timed, "pareto", pareto, RIGHT),
        RANKING: over_networks(dict(zip(networks, runs, strict=True))),
        "claims": matrix(
            {name: run.rows("claims") for name, run in zip(networks, runs, strict=True)}
        ),
    }
    return {
        name: result
        for name, result in results.items()
        if result.table is not None and result.table.rows
    }


def groups_in_words(results: Mapping[str, Result]) -> list[str]:
    """Return a line per group with its accuracy; for at most four runs also a line per pair with its difference."""
    tables = {name: result.table.dicts() for name, result in results.items() if result.table}
    groups, tests = tables.get("groups", []), tables.get("paired", [])
    text = of_steps(tables.get(STEPS, []))
    for row in groups:
        runs, low, high, half = (
            row["runs"],
            row["low"],
            row["high"],
            100 * row["half_width_over_images"],
        )
        over = f", 95 % over {runs} runs {100 * low:.2f} to {100 * high:.2f}" if runs > 1 else ""
        mean = f"test accuracy {100 * row['accuracy']:.2f} %"
        text.append(f"{row['group']}: {mean}{over}, over images of a run +- {half:.2f}")
    text += words.best_methods(tables.get(RANKING, []), "networks")
    benches_alone = RANKING in tables and not groups  # none has test images of a whole run
    return text if benches_alone or len(tests) > FEW else text + [sentence(pair) for pair in tests]


def answers(runs: Sequence[Run], called: Sequence[str]) -> list[str]:
    """Return a sentence per run on what it was asked, if that is a pruning, curves, claims or maps.

    called: names of the runs. Of many runs the first alone; of steps of curves see ``of_steps``.
    """
    text = []
    for run, name in zip(runs, called, strict=True):
        if not run.of_step and any(run.rows(kind) for kind in ASKED):
            text.append(f"{name}: {words.result_in_words(run, atlas.heads_listed(run), [])[0]}")
    return text[:MANY]


def head_by_head(runs: Sequence[Run]) -> list[str]:
    """Return a line with the command that compares the heads of two runs of one architecture; [] of others.

    A run without weights of its own stands by the file that it read.
    """
    sides = [side for run in runs if (side := _weights(run)) is not None]
    if len(runs) != 2 or len(sides) != 2 or sides[0] == sides[1] or not _one_architecture(runs):
        return []
    return [
        f"What each head computes differently: mhprobe diff {shlex.join(map(str, sides))} PHOTOS "
        "(a folder of photographs)."
    ]


def _weights(run: Run) -> Path | None:
    """Return a run's folder if its weights are there, else the file that it read; None where neither is."""
    with contextlib.suppress(UserError):
        find_weights(run.folder)
        return run.folder
    given = run.config.get("weights")
    return Path(given) if isinstance(given, str) and Path(given).exists() else None


def _one_architecture(runs: Sequence[Run]) -> bool:
    """Return True for networks that were built alike, also where heads of one are gone."""
    built = [
        {key: value for key, value in run.model.get("backbone", {}).items() if key not in TRAINED}
        for run in runs
    ]
    if all(built):
        return built[0] == built[1]
    heads = [atlas.heads_listed(run) for run in runs]
    return bool(heads[0]) and heads[0] == heads[1]


def inert(result: Result) -> Result:
    """Put an apostrophe before table cells that a spreadsheet would run as formulas.

    Texts come from the settings of others' runs, and one may be ``=HYPERLINK(...)``.
    """
    if result.table is None:
        return result
    columns, rows, kind = result.table
    plain = [[_no_formula(cell) for cell in row] for row in (columns, *rows)]
    return result._replace(table=Table(plain[0], plain[1:], kind))


def _no_formula(cell: Any) -> Any:
    """Quote a text that looks like a formula; numbers stay numbers, also as text.

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


def data_of_runs(runs: Sequence[Run]) -> tuple[str, Sample]:
    """Return data set and number of test images of the runs, for the small print of figures; empty if unknown."""
    data = dict.fromkeys(str(run.model["data"]) for run in runs if run.model.get("data"))
    counts = sorted({accuracy[3] for run in runs if (accuracy := words.asked(run)) is not None})
    images = Sample(counts[0], "test") if counts else Sample()
    if len(counts) > 1:
        images = images._replace(words=f"n = {counts[0]:,} to {counts[-1]:,} test images")
    return ", ".join(data), images


def _drawn(
    rows: Sequence[Mapping[str, Any]],
    kind: str,
    draw: Callable[[Sequence[Mapping[str, Any]]], Figure],
    says: tuple[str, str],
) -> Result:
    """Return a table of rows, with its kind of figure where there are any.

    says: in words its values, and the meaning of a larger one.
    """
    result = Result(from_rows(rows), draw(rows) if rows else None, drawn=kind)
    return result.saying(*says)


def _accuracies(ones: Sequence[One]) -> list[dict[str, Any]]:
    """Return a row per run that has an accuracy: its group, its settings, the interval over images."""
    return [
        {
            "run": one.name,
            "group": one.group,
            **one.values,
            **dict(zip(ACCURACY, one.accuracy, strict=True)),
        }
        for one in ones
        if one.accuracy is not None
    ]


def _ones(runs: Sequence[Run], over: Sequence[str]) -> list[One]:
    """Name and group the runs. Raises UserError for an ``over`` that no run has set."""
    keys = {part for run in runs for key in settings(run) for part in (key, key.split(".")[-1])} | {
        "seed"
    }
    if unknown := [key for key in over if key not in keys]:
        hint = f"{nearest(unknown[0], keys)}expected one such as {', '.join(sorted(keys)[:3])}."
        raise UserError(f"compare: over: no run has a setting {unknown[0]}; {hint}")
    settings_apart = {
        key: values for key, values in differing(runs).items() if key.split(".")[0] not in ASIDE
    }
    summed = {*over, STEP}
    typed = typed_apart(runs, without=summed)
    named = names(runs)
    ones, groups = [], []
    for number, run in enumerate(runs):
        values = {key: of_runs[number] for key, of_runs in settings_apart.items()}
        group = {
            key: value for key, value in values.items() if not {key, key.split(".")[-1]} & summed
        }
        by = typed[number] if any(map(as_typed, typed)) else dict(list(group.items())[:MOST])
        text = (as_typed(by) or "as it is") if group else "all runs"
        ones.append(One(named[number], run, values, text, by, words.asked(run)))
        groups.append(group)
    return _numbered(ones, groups)


def _numbered(ones: Sequence[One], groups: Sequence[dict[str, str]]) -> list[One]:
    """Number groups that share a name. groups: the settings of each run's group."""
    sharing: dict[str, list[dict[str, str]]] = {}
    for one, group in zip(ones, groups, strict=True):
        alike = sharing.setdefault(one.group, [])
        if group not in alike:
            alike.append(group)
    numbered = []
    for one, group in zip(ones, groups, strict=True):
        alike = sharing[one.group]
        name = one.group if len(alike) == 1 else f"{one.group} ({alike.index(group) + 1})"
        numbered.append(one._replace(group=name))
    return numbered


def _groups(ones: Sequence[One]) -> list[dict[str, Any]]:
    """Return a row per group: mean and spread over its runs, and the mean interval over images of a single run."""
    groups: dict[str, list[tuple[float, float, float, int]]] = {}
    for one in ones:
        if one.accuracy is not None and not one.run.of_step:  # a mean over steps says nothing
            groups.setdefault(one.group, []).append(one.accuracy)
    return [
        {
            **{
                "group": group,
                "runs": len(accuracies),
                **_spread([share for share, *_ in accuracies]),
            },
            "half_width_over_images": statistics.fmean(
                (high - low) / 2 for _, low, high, _ in accuracies
            ),
        }
        for group, accuracies in groups.items()
    ]


def _steps(ones: Sequence[One]) -> list[dict[str, Any]]:
    """Return a row per run of one masking step and curve, by group, curve and step; [] without such runs."""
    rows = [
        {"group": one.group, "run": one.name, **row}
        for one in ones
        for row in words.rows_of_step(one.run)
    ]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    curves = list(dict.fromkeys(row["curve"] for row in rows))

    def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return groups.index(row["group"]), curves.index(row["curve"]), int(row["step"])

    return sorted(rows, key=place)


def swept(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return ``masked_networks`` of runs, and nothing of runs without a masking step."""
    return _steps(_ones(runs, ())) if any(run.of_step for run in runs) else []


def _grid(ones: Sequence[One]) -> list[dict[str, Any]]:
    """Return mean accuracy by the settings that differ, a column per value of the last; [] for fewer than two."""
    keys = list(dict.fromkeys(key for one in ones for key in one.by))
    if len(keys) < 2:
        return []
    shares: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for one in ones:
        if one.accuracy is not None:
            *rest, last = (one.by.get(key, "") for key in keys)
            shares.setdefault(tuple(rest), {}).setdefault(last, []).append(one.accuracy[0])
    across = sorted({value for row in shares.values() for value in row}, key=_in_order)
    return [
        {
            **dict(zip(keys, rest, strict=False)),
            **{
                f"{keys[-1]}={value}": statistics.fmean(row[value]) if value in row else ""
                for value in across
            },
        }
        for rest, row in sorted(
            shares.items(), key=lambda item: [_in_order(value) for value in item[0]]
        )
    ]


def _in_order(value: str) -> tuple[float, str]:
    """Sort key: numbers by size, then words."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _curves(ones: Sequence[One]) -> list[dict[str, Any]]:
    """Return a row per group, curve, split and number of heads masked.

    of: the score that "accuracy" is.
    """
    groups = list(dict.fromkeys(one.group for one in ones))
    seen: dict[tuple[int, str, str, float, str], dict[str, tuple[float, float, float]]] = {}
    for one in ones:
        series = as_typed({key: value for key, value in one.values.items() if key != STEP})
        of = atlas.score_name(one.run)
        for line in atlas.lines(one.run):
            for point in line["points"]:
                key = (
                    groups.index(one.group),
                    line["curve"],
                    line["split"],
                    float(point["heads_masked"]),
                    of,
                )
                seen.setdefault(key, {})[series] = (point["accuracy"], point["low"], point["high"])
    rows = []
    for (group, curve, split, heads, of), points in sorted(seen.items()):
        spread = _spread([accuracy for accuracy, _, _ in points.values()])
        if len(points) == 1:  # what is left is the interval over images
            ((_, spread["low"], spread["high"]),) = points.values()
        place = {
            "group": groups[group],
            "curve": curve,
            "split": split,
            "heads_masked": heads,
            "runs": len(points),
        }
        rows.append({**place, **spread, "of": of})
    return rows


def _timed(one: One) -> dict[str, Any]:
    """Return a row of ``pareto`` of a pruned network whose speed was measured; {} of another run."""
    stages = one.run.rows("stages")
    mine = {
        f"speedup_{row['batch']}": row["speedup"]
        for row in one.run.rows("speed")
        if row["removed"] == "this mask"
    }
    if not stages or not mine:
        return {}
    (dense, whole), (pruned, left) = (
        (stages[end]["accuracy"], stages[end]["flops"]) for end in (0, -1)
    )
    return {
        "method": one.group,
        "budget": "",
        "flops": left / whole,
        "dense": dense,
        "pruned": pruned,
        **mine,
    }


def _agreement(ones: Sequence[One], k: int = 10) -> list[dict[str, Any]]:
    """Return a row per measure and two runs of the same layout: their rank correlation over heads."""
    measures = [{measure["key"]: measure for measure in atlas.measures(one.run)} for one in ones]
    rows = []
    for (a, first), (b, second) in itertools.combinations(zip(ones, measures, strict=True), 2):
        if atlas.heads_listed(a.run) != atlas.heads_listed(b.run):
            continue
        for key in [key for key in first if key in second]:
            columns = {one.name: words.values(of[key]) for one, of in ((a, first), (b, second))}
            # None, of a head without a value, becomes NaN
            alike = agreement(
                {name: torch.tensor(np.array(value, float)) for name, value in columns.items()}, k
            )
            numbers = {
                name: getattr(alike, name)[0, 1].item()
                for name in ("spearman", "overlap", "chance")
            }
            rows.append({"measure": key, "run_a": a.name, "run_b": b.name, **numbers, "k": alike.k})
    return rows


def _spread(shares: Sequence[float]) -> dict[str, Any]:
    """Return mean, deviation and Student's 95 % interval over runs, cut to [0, 1]; "" for one run."""
    if len(shares) < 2:
        return {"accuracy": shares[0], "deviation": "", "low": "", "high": ""}
    mean, low, high = (
        end.item() for end in t_interval(torch.tensor(shares, dtype=torch.float64)[:, None])
    )
    return {
        "accuracy": mean,
        "deviation": statistics.stdev(shares),
        **{"low": max(0.0, low), "high": min(1.0, high)},
    }


def pairs_of_runs(
    outcomes: Sequence[Outcomes | None], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for every two runs, with a paired test if they were tested on the same images.

    outcomes: of each run, its correct test images, or None.
    run_a, run_b: names. difference, low, high: accuracy of b - a with its 95 % interval. lost, won:
    images that only a, only b gets right. p: exact McNemar; p_holm: over all tested pairs. images:
    their number. untested: the reason why there is no test, or "".
    """
    rows = []
    for (a, first), (b, second) in itertools.combinations(zip(names, outcomes, strict=True), 2):
        row: dict[str, Any] = {"run_a": a, "run_b": b, **UNTESTED, "untested": ""}
        if first is None or second is None:
            silent = [name for name, of in ((a, first), (b, second)) if of is None]
            row["untested"] = f"{' and '.join(silent)} did not write which test images were right"
        elif first.images != second.images:
            row["untested"] = "they were tested on different images"
        else:
            row |= {**paired(first.right, second.right)._asdict(), "images": len(first.right)}
        rows.append(row)
    tested = [row for row in rows if not row["untested"]]
    adjusted = holm(torch.tensor([row["p"] for row in tested], dtype=torch.float64)).tolist()
    for row, p in zip(tested, adjusted, strict=True):
        row["p_holm"] = p
    return rows


def rows_of_pairs(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row of ``pairs_of_runs`` for every two runs; of runs of one masking step a row per curve.

    Those compare the masked networks, of a curve that both runs have; "curve" names it. A run
    without masks is the whole network in them.
    """
    if not any(run.of_step for run in runs):
        return pairs_of_runs([run.outcomes() for run in runs], names)
    rows = [
        {"curve": curve, **row}
        for curve, right in _outcomes_by_curve(runs).items()
        for row in pairs_of_runs(right, names)
        if not row["untested"]
    ]
    adjusted = holm(torch.tensor([row["p"] for row in rows], dtype=torch.float64)).tolist()
    return [{**row, "p_holm": p} for row, p in zip(rows, adjusted, strict=True)]


def _outcomes_by_curve(runs: Sequence[Run]) -> dict[str, list[Outcomes | None]]:
    """Return the outcomes of every run by curve: those of its masked network, or of the whole one without masks."""
    masked = [run.masked_outcomes() for run in runs]
    curves = dict.fromkeys(name for of in masked for name in of)
    return {
        curve: [
            of.get(curve) if run.of_step else run.outcomes()
            for run, of in zip(runs, masked, strict=True)
        ]
        for curve in curves
    }


def of_steps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on ``masked_networks``; of many those of the first curve, and each last step."""
    curves = [(row["group"], row["curve"]) for row in rows]
    last = {of: row["step"] for of, row in zip(curves, rows, strict=True)}
    groups = {group for group, _ in curves}
    text = []
    for of, row in zip(curves, rows, strict=True):
        if len(rows) > MANY and of != curves[0] and row["step"] != last[of]:
            continue
        before = f"{of[0]}: " if len(groups) > 1 else ""
        text.append(before + words.step_in_words(row))
    return [*dict.fromkeys(text)]


def sentence(row: Mapping[str, Any]) -> str:
    """Return a row of ``pairs_of_runs`` as a sentence."""
    if row["untested"]:
        return (
            f"{row['run_b']} against {row['run_a']}: {row['untested']}, so there is no paired test."
        )
    gap, low, high = (100 * row[name] for name in ("difference", "low", "high"))
    curve = f"{row['curve']}: " if row.get("curve") else ""
    return (
        f"{curve}{row['run_b']} minus {row['run_a']}: {gap:+.1f} points (95 % interval {low:+.1f} to "
        f"{high:+.1f}), "
        f"p = {row['p_holm']:.2g} (McNemar, Holm) on the same {row['images']:,} images."
    )


def by_network(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row per claim with the verdict of each network, "" if the network was not asked.

    judged: the rows of claims, by the name of the network's run; runs without any are left out.
    """
    claims = {name: {row["claim"]: row for row in rows} for name, rows in judged.items() if rows}
    says = {claim: row["says"] for rows in claims.values() for claim, row in rows.items()}
    rows = []
    for claim in sorted(says):
        verdicts = {
            name: str(of[claim]["verdict"]) if claim in of else "" for name, of in claims.items()
        }
        holds = sum(verdict == "holds" for verdict in verdicts.values())
        rows.append({"claim": claim, "says": says[claim], "holds_in": holds, **verdicts})
    return rows


def matrix(judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> Result:
    """Return the table and the figure of claims by networks; empty if no run judged any."""
    rows = by_network(judged)
    if not rows:
        return Result()
    return Result(
        from_rows(rows),
        claims_matrix(rows, [name for name in judged if name in rows[0]]),
        drawn="claims_matrix",
        about="Which findings of the literature hold for which network?",
        columns={"holds_in": "in how many networks it holds"},
    ).saying("in how many networks a claim holds", "it holds more generally")
