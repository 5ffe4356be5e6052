"""The result in words: short sentences with their intervals, what chance would give, and which images chose what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mhprobe.report.runs import curves
from mhprobe.report.runs.run import Run, column
from mhprobe.stats.significance import wilson


def result(run: Run, heads: list[dict[str, Any]], measures: list[dict[str, Any]]) -> list[str]:
    """What the run found, most important first."""
    found = [*_accuracy(run), *_masking(run, len(heads)), *_promise(run, len(heads)), *_kept(run), *_speed(run)]
    found += _maps(run)
    found += _extremes(heads, measures[0]) if measures else []
    return found or ["This run wrote figures or tables only."]


def glance(heads: list[dict[str, Any]], measures: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row per measure: its highest and lowest head, and how many heads lie above chance."""
    found = []
    for measure in measures:
        values = measure["columns"].get("value") or next(iter(measure["columns"].values()))
        known = [i for i, value in enumerate(values) if value is not None]
        if not known:
            continue
        high, low = max(known, key=values.__getitem__), min(known, key=values.__getitem__)
        found.append(
            {
                "name": measure["name"],
                "about": measure["about"] or measure["label"],
                "high": f"{head_name(heads, high)}: {value_of(measure, values, high)}",
                "low": f"{head_name(heads, low)}: {value_of(measure, values, low)}",
                "chance": "; ".join([*_against(values, measure["chance"], "chance"), *_twin(values, measure["twin"])]),
            }
        )
    return found


def head_name(heads: list[dict[str, Any]], flat: int) -> str:
    """e.g. ``block 3, head 5``."""
    return f"block {heads[flat]['block']}, head {heads[flat]['index']}"


def value_of(measure: dict[str, Any], values: list[Any], flat: int) -> str:
    """The number with its interval where there is one."""
    low, high = measure["low"], measure["high"]
    if low is None or values is not measure["columns"].get("value") or low[flat] is None:
        return f"{values[flat]:.2g}"
    return f"{values[flat]:.2g} ({low[flat]:.2g} to {high[flat]:.2g})"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def accuracy(run: Run) -> tuple[float, float, float, int] | None:
    """Test accuracy, Wilson's 95 % interval, and on how many images; None where the run has none."""
    share, images = run.metrics.get("test/accuracy"), run.metrics.get("test/images")
    if share is None or not images:
        return None
    low, high = wilson(torch.tensor(round(share * images)), torch.tensor(images))
    return share, low.item(), high.item(), int(images)


def chance(run: Run) -> float | None:
    """The accuracy of guessing, where the number of classes is known."""
    names = run.model.get("class_names")
    return 1 / len(names) if names else None


def _accuracy(run: Run) -> list[str]:
    if (found := accuracy(run)) is None:
        return []
    share, low, high, images = found
    guess = chance(run)
    on = f" of {run.model['data']}" if "data" in run.model else ""
    return [
        f"Test accuracy is {percent(share)} (95 % interval {100 * low:.1f} to {100 * high:.1f}, {images} images{on})."
        + (f" Guessing would give {percent(guess)}." if guess else "")
    ]


def _masking(run: Run, heads: int) -> list[str]:
    if (chosen := curves.best(run)) is None:
        return []
    name, split, many = chosen["curve"], chosen["split"], round(chosen["heads_within_1_point"])
    what = curves.scored(run)
    lines = {(line["curve"], line["split"]): line for line in curves.lines(run)}
    reported = "test" if (name, "test") in lines else split
    points = lines[name, reported]["points"]
    here = max((p for p in points if p["heads_masked"] <= many), key=lambda p: p["heads_masked"])
    flatters = " It was chosen and judged on the same images, which flatters it." if reported == split else ""
    said = [
        f"{many or 'None'} of {heads or 'the'} heads can be masked within one point of {what}, chosen on {split} "
        f"images (the best of the searched orders there is {name}).{flatters}"
    ]
    if many:
        random = [
            point
            for (_, on), line in lines.items()
            if line["averaged"] and on == reported
            for point in line["points"]
            if point["heads_masked"] == many
        ]
        beside = f"; as many random heads leave {interval(random[0])} on average" if random else ""
        said.append(
            f"Without them {reported} {what} is {interval(here)}; with all heads it is {interval(points[0])}{beside}."
        )
    worse = next((p for p in points if p["p_holm"] is not None and p["p_holm"] < 0.05 and p["step"]), None)
    if worse is not None and worse["accuracy"] < points[0]["accuracy"]:
        said.append(
            f"In this order {reported} {what} is first significantly lower (McNemar, Holm, 5 %) with "
            f"{worse['heads_masked']} heads masked: {interval(worse)}."
        )
    return said


def interval(point: dict[str, Any]) -> str:
    """Accuracy with its 95 % interval."""
    if point["low"] is None:
        return percent(point["accuracy"])
    return f"{percent(point['accuracy'])} ({100 * point['low']:.1f} to {100 * point['high']:.1f})"


def _promise(run: Run, heads: int) -> list[str]:
    found = {key.rpartition("/")[2]: value for key, value in run.metrics.items() if key.startswith("prune/promise/")}
    asked = {key: value for key, value in found.items() if value is not None}
    if not asked or len(asked) < len(found):
        return []
    limit, sure = f"{asked['points']:g} point{'s' * (asked['points'] != 1)}", f"{100 * asked['confidence']:g} %"
    on = f"({asked['images']} calibration images, which chose neither the heads nor how many)"
    what = curves.scored(run)
    if not asked["steps"]:
        return [f"No head can go with the promise that new images lose at most {limit} of {what} {on}."]
    return [
        f"{asked['heads']} of {heads} heads can go with the promise, of {sure} confidence, that new images lose at "
        f"most {limit} of {what} {on}."
    ]


def _kept(run: Run) -> list[str]:
    said = []
    for name, by in (("kept_heads", "pruning keeps"), ("gates", "the learned gates keep")):
        table = run.tables.get(name)
        if table is not None and "kept" in table.columns:
            kept = column(table, "kept")
            said.append(f"{sum(map(bool, kept))} of {len(kept)} heads are those that {by}.")
    table = run.tables.get("pruning")
    if table is not None and {"stage", "accuracy", "low", "high", "parameters"} <= set(table.columns):
        first, last = (dict(zip(table.columns, row, strict=True)) for row in (table.rows[0], table.rows[-1]))
        said.append(
            f"Test {curves.scored(run, 'pruning')} goes from {interval(first)} to {interval(last)}{_change(last)}, "
            f"parameters from {first['parameters']:,} to {last['parameters']:,}."
        )
    return said


def _change(row: Mapping[str, Any]) -> str:
    """Against the dense network, image by image; runs of earlier versions do not say it."""
    if "p" not in row:
        return ""
    gap, low, high = (100 * row[name] for name in ("difference", "difference_low", "difference_high"))
    return f", {gap:+.1f} points on the same images (95 % {low:+.1f} to {high:+.1f}, p = {row['p']:.2g})"


def _speed(run: Run) -> list[str]:
    """Of the heads that were removed, at the largest batch."""
    table = run.tables.get("speed")
    if table is None or not table.rows:
        return []
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    row = max((row for row in rows if row["removed"] == rows[0]["removed"]), key=lambda row: row["batch"])
    low, high = row["speedup_low"], row["speedup_high"]  # none where too few timings were taken
    within = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return [
        f"At batch {row['batch']} the pruned network is {row['speedup']:.2f} times as fast as the dense one{within} on "
        f"{row['device']}; its FLOPs predict {row['predicted']:.2f}."
    ]


def _maps(run: Run) -> list[str]:
    """How faithful each kind of map is, on average over its maps."""
    table = run.tables.get("maps")
    if table is None or "deletion" not in table.columns:
        return []
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows if None not in row]
    said = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        deletion, insertion, chance, up_by_chance = (
            sum(row[name] for row in own) / len(own)
            for name in ("deletion", "insertion", "random_deletion", "random_insertion")
        )
        said.append(
            f"{kind}: deletion {deletion:.2f} (random orders {chance:.2f}; lower is better), insertion {insertion:.2f} "
            f"(random orders {up_by_chance:.2f}; higher is better), mean over {len(own)} map{'s' * (len(own) != 1)}."
        )
    return said


def _extremes(heads: list[dict[str, Any]], measure: dict[str, Any]) -> list[str]:
    values = measure["columns"].get("value") or next(iter(measure["columns"].values()))
    order = sorted((i for i, v in enumerate(values) if v is not None), key=lambda i: -values[i])
    if len(order) < 4 or len(set(values)) <= 2:
        return []
    most, least = (
        "; ".join(f"{head_name(heads, i)}: {value_of(measure, values, i)}" for i in some)
        for some in (order[:3], order[-3:][::-1])
    )
    unsure = " Heads whose intervals overlap are not told apart." if measure["low"] is not None else ""
    return [f"By {measure['name']} the highest heads are {most}. The lowest are {least}.{unsure}"]


def _against(values: list[Any], level: list[Any] | None, name: str) -> list[str]:
    if level is None:
        return []
    both = [(v, c) for v, c in zip(values, level, strict=True) if v is not None and c is not None]
    if not both:
        return []
    levels = [c for _, c in both]
    text = f"{levels[0]:.3g}" if len(set(levels)) == 1 else f"{min(levels):.3g} to {max(levels):.3g}"
    return [f"{name} gives {text}; {sum(v > c for v, c in both)} of {len(both)} heads lie above it"]


def _twin(values: list[Any], twin: list[Any] | None) -> list[str]:
    known = [value for value in twin or [] if value is not None]
    if not known:
        return []
    above = sum(value > max(known) for value in values if value is not None)
    return [f"a random network's heads reach {min(known):.3g} to {max(known):.3g}; {above} heads lie above that"]
