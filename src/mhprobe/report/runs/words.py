"""Sentences on the result of a run, with intervals, chance levels, and the images that chose."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mhprobe.heads import KINDS
from mhprobe.io.written import counted, rounded, with_interval
from mhprobe.report.figures.claims import WORDS as VERDICTS
from mhprobe.report.runs import atlas
from mhprobe.report.runs.run import Run
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.promise import Guarantee
from mhprobe.stats.significance import holm, significant, wilson

KEEPS = {"removed": "pruning keeps", "closed": "the learned gates keep"}


def result_in_words(
    run: Run, heads: list[dict[str, Any]], measures: list[dict[str, Any]]
) -> list[str]:
    """Return sentences with numbers and intervals, first of all what the run was asked.

    That is the masked network, the pruned network, what half of the heads cost, verdicts on claims,
    the best method, or the faithfulness of maps; of a run that only measured, the extreme heads.
    """
    answer = [
        *masked(run, len(heads)),
        *_pruned(run),
        *_can_go(run, len(heads)),
        *_missed(heads, measures),
        *findings(run.rows("claims")),
        *best_methods(run.rows("ranking")),
        *_maps(run),
    ]
    shown = measures[0 if answer else opening(measures)] if measures else None
    extremes = _extremes(heads, shown) if shown else []
    if not answer:
        answer, extremes = extremes, []
    text = [
        *answer,
        *_accuracy(run),
        *_masking(run, heads),
        *_promise(run, len(heads)),
        *_kept(run),
        *_speed(run),
        *extremes,
    ]
    return text or ["No accuracy was measured: see the figures and tables."]


def chosen_on(run: Run) -> str:
    """Return the images that choose heads: of a pruning or of masking curves, else those of validation."""
    sections = [run.config.get(name) for name in ("prune", "masking")]
    split = next(
        (part["select_on"] for part in sections if isinstance(part, dict) and "select_on" in part),
        "",
    )
    return {"train": "training", "": "validation"}.get(str(split), str(split))


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on claims of the literature: counts of verdicts, and which claims have been decided.

    rows: claim, verdict, untrained; [] gives no sentence.
    """
    if not rows:
        return []
    counts = Counter(row["verdict"] for row in rows)
    others = ", ".join(f"{word}: {counts[word]}" for word in list(VERDICTS)[1:])
    first = f"{counts['holds']} of {len(rows)} claims hold ({others})."
    hold = [row for row in rows if row["verdict"] == "holds"]
    contradicted = _in_words(row for row in rows if row["verdict"] == "contradicted")
    against = [f"Contradicted: {contradicted}."] if contradicted else []
    if any(row["untrained"] for row in rows):
        return [first, *_beside_an_untrained_network(hold), *against]
    which = [f"They are: {_in_words(hold)}."] if hold else []
    return [first, *which, *against, "There is no untrained twin to compare with."]


def _beside_an_untrained_network(hold: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on which claims that hold do so for an untrained network, too, and which do not."""
    alone = _in_words(row for row in hold if row["untrained"] != "holds")
    both = _in_words(row for row in hold if row["untrained"] == "holds")
    too = f"Of those that hold, these hold for an untrained network, too: {both or 'none'}."
    return [f"Hold, and not for an untrained network: {alone}.", too] if alone else [too]


def _in_words(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the names of claims in words, with semicolons between."""
    return "; ".join(str(row["claim"]).replace("_", " ") for row in rows)


class ClaimsOfVerdict(NamedTuple):
    """Claims of one verdict. decided: the verdict says something about the network."""

    verdict: str
    decided: bool
    claims: list[dict[str, str]]


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[ClaimsOfVerdict]:
    """Return the claims of each verdict that some claim has, decided ones first.

    rows: of the table ``claims``. Each claim has ``says``, its sentence; ``number``, its effect
    with the interval, or the reason why there is none; ``beside``, what else is known of it; and
    ``source``.
    """
    groups = []
    for word in VERDICTS:
        if of_word := [row for row in rows if row["verdict"] == word]:
            told = [
                {
                    "says": str(row["says"]),
                    "number": _effect(row),
                    "beside": _beside(row),
                    "source": str(row.get("source", "")),
                }
                for row in of_word
            ]
            groups.append(ClaimsOfVerdict(word, word in list(VERDICTS)[:3], told))
    return groups


def _effect(row: Mapping[str, Any]) -> str:
    """Return the effect of a claim with its interval, or the reason why there is none."""
    if row.get("effect") in (None, "") or not math.isfinite(float(row["effect"])):
        return str(row.get("reason") or "")
    effect, low, high = (float(row[name]) for name in ("effect", "low", "high"))
    cut = "at most" if row["shape"] == "at most" else "matters from"
    return (
        f"{effect:.2g} ({low:.2g} to {high:.2g}; {cut} {float(row['matters']):g}) {row['unit']}, "
        f"of {counted(int(row['count']), str(row['over']).removesuffix('s'))}"
    )


def _beside(row: Mapping[str, Any]) -> str:
    """Return whether a claim was learned, or how many heads or images would decide it."""
    if row.get("learned") == "no":
        return "It holds for the untrained network, too."
    if row["verdict"] == "cannot be told" and row.get("needed"):
        return f"{int(row['needed']):,} {row['over']} would tell."
    return ""


def glance(heads: list[dict[str, Any]], measures: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per measure: highest and lowest head, and what they are read against.

    Of chance with the number of heads that differ from it.
    """
    rows = []
    for measure in measures:
        if not (order := by_size(measure)) or {*values(measure)} <= {
            0,
            1,
        }:  # kept or not: no measure
            continue
        lowest = min(order, key=values(measure).__getitem__)
        rows.append(
            {
                "name": measure["name"],
                "about": measure["about"] or measure["label"],
                **{
                    end: ": ".join(named(heads, measure, flat))
                    for end, flat in (("high", order[0]), ("low", lowest))
                },
                "chance": "; ".join([*_against(measure), *_twin(measure)]),
            }
        )
    return rows


def opening(measures: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the measure that has most heads beyond its control, the first of equals."""
    return max(range(len(measures)), key=lambda at: beyond_control(measures[at]), default=0)


def beyond_control(measure: Mapping[str, Any]) -> int:
    """Count the heads whose whole interval lies outside of what the control reaches.

    The control is the heads of an untrained network, or chance where there is none; even attention
    is no control. 0 without a control.
    """
    chance = measure["chance"] if measure["reference"] == "chance" else None
    control = [level for level in measure["twin"] or chance or [] if level is not None]
    if not control:
        return 0
    numbers = values(measure)
    lows, highs = measure["low"] or numbers, measure["high"] or numbers
    ends = zip(lows, highs, strict=True)
    least, most = min(control), max(control)
    return sum(
        low > most or high < least for low, high in ends if low is not None and high is not None
    )


def values(measure: Mapping[str, Any]) -> list[Any]:
    """(A,) numbers of a measure's first column, None for a head without one."""
    return measure["columns"].get("value") or next(iter(measure["columns"].values()))


def by_size(measure: Mapping[str, Any]) -> list[int]:
    """Return the heads with a value, from the largest to the smallest."""
    numbers = values(measure)
    return sorted(
        (flat for flat, value in enumerate(numbers) if value is not None),
        key=lambda flat: -numbers[flat],
    )


def named(heads: list[dict[str, Any]], measure: Mapping[str, Any], flat: int) -> tuple[str, str]:
    """Return the head's name and its number, with its interval: ``block 3, head 5``, ``3 (2.9 to 3.1)``."""
    value, low = values(measure)[flat], measure["low"]
    none = low is None or low[flat] is None or "value" not in measure["columns"]
    number = rounded(value) if none else with_interval(value, low[flat], measure["high"][flat])
    return head_name(heads, flat), number


def head_name(heads: list[dict[str, Any]], flat: int, form: str = "{0}, head {1}") -> str:
    site, block, index = (heads[flat].get(name) for name in ("site", "block", "index"))
    several = any(head["block"] == block and head.get("site") != site for head in heads)
    return form.format(site if several else f"block {block}", index)


def percent_of(share: float) -> str:
    return f"{100 * share:.1f} %"


def accuracy(run: Run) -> tuple[float, float, float, int] | None:
    """Return test accuracy, its Wilson 95 % interval, and the number of images; None without."""
    share, images = (run.metrics.get(f"test/{name}") for name in ("accuracy", "images"))
    if share is None or not images:
        return None
    low, high = wilson(torch.tensor(round(share * images)), torch.tensor(images))
    return share, low.item(), high.item(), int(images)


def asked(run: Run) -> tuple[float, float, float, int] | None:
    """Return the test accuracy that answers what the run was asked, its interval, and the images.

    Of one masking step that of the masked network; of others that of the network.
    """
    if not run.of_step:
        return accuracy(run)
    share, low, high = (run.metrics.get(f"masked/accuracy{end}") for end in ("", "_low", "_high"))
    images = run.metrics.get("test/images")
    if share is None or low is None or high is None or not images:
        return None
    return share, low, high, int(images)


def rows_of_step(run: Run) -> list[dict[str, Any]]:
    """Return a row per curve of a run of one step; [] of other runs.

    curve, step, heads_masked; of: the score. accuracy to difference_high: as in
    ``masking_curves.csv``. random: the mean accuracy of as many random heads, "" without. mean: 1
    for a mean over random orders. flattered: 1 where the images of the score chose the heads.
    """
    if not run.of_step:
        return []
    last = {line["curve"]: line for line in atlas.lines(run)}  # the test split comes last
    at_random = {
        line["points"][0]["heads_masked"]: line["points"][0]["accuracy"]
        for line in last.values()
        if line["averaged"]
    }
    names = atlas.AT_A_STEP
    rows = []
    for curve, line in sorted(last.items(), key=lambda item: item[1]["averaged"]):
        point = line["points"][0]
        beside = "" if line["averaged"] else at_random.get(point["heads_masked"], "")
        of_line = {"of": atlas.score_name(run), "random": beside, "mean": int(line["averaged"])}
        of_line["flattered"] = int(line["chosen_on"] == line["split"] and not line["averaged"])
        rows.append({"curve": curve, **{name: point[name] for name in names}, **of_line})
    return rows


def step_in_words(row: Mapping[str, Any], heads: int = 0) -> str:
    """Return a row of ``rows_of_step`` as a sentence. heads: of the network, 0 for unknown."""
    off = f"{row['heads_masked']:g}"
    many = f"{off} of {heads} heads" if heads else f"{off} {'head' if off == '1' else 'heads'}"
    if not row["step"]:
        return f"Step 0, no head off: test {row['of']} is {percent_of(row['accuracy'])}, as it is whole."
    score = f"test {row['of']} is {accuracy_with_interval(row)}"
    orders = ", mean over random orders" if row["mean"] else ""
    text = f"Step {row['step']} of {row['curve']}, {many} off{orders}: {score}"
    if None not in (row["difference"], row["difference_low"], row["difference_high"]):
        lower = row["difference"] <= 0
        ends = [100 * row[name] for name in ("difference_low", "difference_high")]
        low, high = (0 - ends[1], 0 - ends[0]) if lower else ends
        over = "over orders" if row["mean"] else "paired"
        text += (
            f", {abs(100 * row['difference']):.1f} points {'below' if lower else 'above'} the "
            f"whole network ({low:.1f} to {high:.1f}, {over})"
        )
    if row["random"] not in ("", None):
        text += f"; as many random heads leave {percent_of(row['random'])}"
    if row["flattered"]:
        text += "; the same images chose the heads, which flatters it"
    return f"{text}."


def masked(run: Run, heads: int) -> list[str]:
    """Return a sentence per curve on the network masked at the one step that was asked for."""
    return [*dict.fromkeys(step_in_words(row, heads) for row in rows_of_step(run))]


def chance(run: Run) -> float | None:
    """Return the accuracy of guessing, None if the number of classes is unknown."""
    names = run.model.get("class_names")
    return 1 / len(names) if names else None


def guesses(run: Run) -> bool:
    """Return True if the whole network's accuracy does not differ significantly from guessing."""
    whole, guess = accuracy(run), chance(run)
    return (
        whole is not None
        and guess is not None
        and atlas.score_name(run) == "accuracy"
        and whole[1] <= guess
    )


def _accuracy(run: Run) -> list[str]:
    if (whole := accuracy(run)) is None:
        return []
    share, low, high, images = whole
    on = counted(images, "image") + (f" of {run.model['data']}" if "data" in run.model else "")
    what = "With all heads, for reference, test accuracy" if run.of_step else "Test accuracy"
    return [
        f"{what} is {percent_of(share)} (95 % interval {100 * low:.1f} to {100 * high:.1f}, "
        f"{on})." + (f" Guessing would give {percent_of(guess)}." if (guess := chance(run)) else "")
    ]


class _Half(NamedTuple):
    """Half of the heads, or the nearest number below it that an order was followed to.

    No number of heads is looked for, so none is flattered by being found. Among the orders the one
    that keeps most with so many heads off on the images that chose it is taken.

    curve: that order. chosen_on: the images that chose it. reported: those of the numbers. total:
    heads of the network. whole, point: before any head is off, and with these off. random: the
    mean over random orders with as many off, None without.
    """

    curve: str
    chosen_on: str
    reported: str
    total: int
    whole: dict[str, Any]
    point: dict[str, Any]
    random: dict[str, Any] | None

    @property
    def named(self) -> str:
        """Return the heads in words: "half of the heads (12 of 24)"."""
        count = self.point["heads_masked"]
        share = f"{count} of {self.total}"
        return f"half of the heads ({share})" if count == self.total // 2 else f"{share} heads"


def half(run: Run, heads: int) -> _Half | None:
    """Return half of the heads of a run with searched masking curves, chosen and judged.

    None without such curves, and for a run that was asked for one step of them, or for a pruned
    network.
    """
    if run.of_step or run.rows("stages"):
        return None
    lines = {(line["curve"], line["split"]): line for line in atlas.lines(run)}
    chosen = _on_choosing_images(lines)
    counts = set().union(*chosen.values()) - {0}
    if not counts:
        return None
    total = heads or max(counts)
    budget = _nearest_below(total // 2, counts)
    rivals = {key: points[budget] for key, points in chosen.items() if budget in points}
    best, chosen_on = max(rivals, key=lambda key: rivals[key]["accuracy"])
    reported = "test" if (best, "test") in lines else chosen_on
    points = lines[best, reported]["points"]
    point = _by_count(points).get(budget)
    if point is None:
        return None
    return _Half(
        curve=best,
        chosen_on=chosen_on,
        reported=reported,
        total=total,
        whole=points[0],
        point=point,
        random=_random_at(budget, reported, list(lines.values())),
    )


def _on_choosing_images(
    lines: Mapping[tuple[str, str], dict[str, Any]],
) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Return the points of each searched curve on the images that chose it, by their numbers of heads off.

    lines, and the result: by the names of the curve and of the images.
    """
    chosen = {}
    for line in lines.values():
        key = line["curve"], line["chosen_on"]
        if not line["averaged"] and key in lines:
            chosen[key] = _by_count(lines[key]["points"])
    return chosen


def _nearest_below(wanted: int, counts: Collection[int]) -> int:
    """Return the largest number that is at most ``wanted``, or the smallest where none is."""
    return max((count for count in counts if count <= wanted), default=min(counts))


def _random_at(budget: int, split: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the point with so many heads off, of the first mean of random orders that has one."""
    means = [line for line in lines if line["averaged"] and line["split"] == split]
    points = (_by_count(line["points"]).get(budget) for line in means)
    return next(filter(None, points), None)


def _by_count(points: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the points of a curve by their numbers of heads that are off."""
    return {int(point["heads_masked"]): point for point in points}


def _can_go(run: Run, heads: int) -> list[str]:
    """Return the headline: what half of the heads cost, and what as many random heads do."""
    if (chosen := half(run, heads)) is None:
        return []
    if guesses(run):
        return [
            "The whole network is not told apart from guessing, so this run does not say which "
            "heads can go."
        ]
    what = f"{chosen.reported} {atlas.score_name(run)}"
    named = chosen.named[0].upper() + chosen.named[1:]
    if chosen.reported == chosen.chosen_on:
        what += ", on the images that chose them, which flatters"
    if chosen.point["difference"] is None:
        text = f"With {chosen.named} off {what} is {accuracy_with_interval(chosen.point)}"
    else:
        text = f"{named} can go {_cost(chosen.point, what)}"
    if (random := chosen.random) is not None and random["difference"] is not None:
        text += f"; {counted(random['heads_masked'], 'random head')} cost {-100 * random['difference']:.1f}"
    return [f"{text}."]


def _cost(point: Mapping[str, Any], what: str) -> str:
    """Return a paired change in words: "for 3.1 points of test accuracy (1.2 to 5.4)"."""
    names = ("difference", "difference_low", "difference_high")
    change, low, high = (round(100 * point[name], 1) for name in names)
    if change > 0:
        return f"and gain {change:.1f} points of {what} ({low:.1f} to {high:.1f})"
    cost, least, most = (0.0 - number for number in (change, high, low))  # no -0.0
    return f"for {cost:.1f} points of {what} ({least:.1f} to {most:.1f})"


def _missed(heads: list[dict[str, Any]], measures: list[dict[str, Any]]) -> list[str]:
    """Name the head whose masking alone raises the loss most, if significantly, and count those that may do as much."""
    alone = next(
        (measure for measure in measures if measure["masks"] and measure["low"] is not None), None
    )
    order = by_size(alone) if alone else []
    if not alone or not order or (low := alone["low"][order[0]] or 0) <= 0:
        return []
    close = sum(high is None or high >= low for high in (alone["high"][flat] for flat in order[1:]))
    as_much = f" ({counted(close, 'other')} may be missed as much)" if close else ""
    name = head_name(heads, order[0])
    return [f"{name[0].upper()}{name[1:]} is missed most{as_much}."]


def _masking(run: Run, heads: list[dict[str, Any]]) -> list[str]:
    chosen = half(run, len(heads))
    if chosen is None or guesses(run):
        return []
    what, on, gone = atlas.score_name(run), chosen.reported, chosen.point
    alone = [
        head_name(heads, one["id"], "head {1} of {0}")
        for one in heads
        if str(one["id"]) == gone["masked"]
    ]
    which = alone[0] if alone else f"these {counted(gone['heads_masked'], 'head')}"
    first = (
        f"Without {which} {on} {what} is {accuracy_with_interval(gone)}; with all heads it is "
        f"{accuracy_with_interval(chosen.whole)}."
    )
    if chosen.random is not None:
        first += f" As many random heads leave {accuracy_with_interval(chosen.random)} on average."
    text = [first]
    if on != chosen.chosen_on:
        text.append(
            f"The order {chosen.curve} was the best of the searched ones with as many heads off on "
            f"{chosen.chosen_on} images."
        )
    return text + _unpromised(run)


def _unpromised(run: Run) -> list[str]:
    """Return how many images it would take to say how many heads can go, where nothing is promised.

    A number of heads that is read from the curve was found by looking, and grows as images get
    fewer.
    """
    if run.rows("promise"):
        return []
    needed = Guarantee()
    return [
        f"No curve tells how many heads can go for at most {counted(round(needed.points), 'point')} "
        f"on new images: prune.guarantee does, with at least {needed.images_needed} images that "
        "chose nothing."
    ]


def accuracy_with_interval(point: Mapping[str, Any]) -> str:
    """Write an accuracy with its 95 % interval."""
    if point["low"] is None:
        return percent_of(point["accuracy"])
    return (
        f"{percent_of(point['accuracy'])} ({100 * point['low']:.1f} to {100 * point['high']:.1f})"
    )


def _points(of: Mapping[str, Any], more: str = "") -> str:
    """Write a paired difference of accuracies with its 95 % interval, in points."""
    change, low, high = (
        100 * of[name] for name in ("difference", "difference_low", "difference_high")
    )
    return f"{change:+.1f} points on the same images (95 % {low:+.1f} to {high:+.1f}{more})"


def change(point: Mapping[str, Any]) -> str:
    """Write a paired change in points with its 95 % interval; "-" where there is none."""
    if point["difference"] is None:
        return "-"
    names = ("difference", "difference_low", "difference_high")
    middle, low, high = (100 * point[name] for name in names)
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def _promise(run: Run, heads: int) -> list[str]:
    if not (rows := run.rows("promise")) or None in rows[0].values():
        return []
    numbers = rows[0]
    gone = {kind: numbers[f"{kind}s"] for kind in KINDS if f"{kind}s" in numbers}
    limit = f"{counted(numbers['points'], 'point')} of {atlas.score_name(run)}"
    listed = any(
        row["curve"] == "given" for row in run.rows("curves")
    )  # by the user: all of them go, or none
    chose = (
        "; it holds if they did not choose the heads"
        if listed
        else ", which chose neither what goes nor how much"
    )
    end = f"new images lose at most {limit} ({numbers['images']} calibration images{chose})."
    if not numbers["steps"]:
        if listed:
            return [f"It cannot be promised that without the heads of the list {end}"]
        return [f"No {' or '.join(gone)} can go with the promise that {end}"]
    going = " and ".join(
        f"{n} of {heads} heads" if kind == "head" else f"{n} neurons" for kind, n in gone.items()
    )
    return [
        f"{going} can go with the promise, of {100 * numbers['confidence']:g} % confidence, that "
        f"{end}"
    ]


def _pruned(run: Run) -> list[str]:
    """Return what the pruned network can do beside the dense one, if the run pruned."""
    if not (rows := run.rows("stages")):
        return []
    first, last = rows[0], rows[-1]
    left = [
        f"{last[f'{kind}s']:,} of {counted(first[f'{kind}s'], kind)}"
        for kind in KINDS
        if last.get(f"{kind}s") is not None and first.get(f"{kind}s") is not None
    ]
    kept = f"With {' and '.join(left)} left" if left else "Pruned"
    text = f"{kept} test {atlas.score_name(run, 'stages')} is {accuracy_with_interval(last)}"
    if None not in [last.get(name) for name in ("difference", "difference_low", "difference_high")]:
        lower = last["difference"] <= 0
        ends = [100 * last[name] for name in ("difference_low", "difference_high")]
        low, high = (0 - ends[1], 0 - ends[0]) if lower else ends
        text += (
            f", {abs(100 * last['difference']):.1f} points {'below' if lower else 'above'} the "
            f"dense network ({low:.1f} to {high:.1f}, paired)"
        )
    text += _random_units(run, last)
    if last.get("p", 1) is None:
        text += "; the same images chose the heads, which flatters it"
    return [f"{text}."]


def _random_units(run: Run, last: Mapping[str, Any]) -> str:
    """Return what as many random units cost, beside the chosen ones where these were repaired or tuned."""
    numbers = {
        name: run.metrics.get(f"prune/random/{name}")
        for name in ("difference", "chosen_difference")
    }
    if (random := numbers["difference"]) is None:
        return ""
    kinds = " and ".join(f"{kind}s" for kind in KINDS if last.get(f"{kind}s") is not None)
    many = f"as many random {kinds or 'heads'}"
    before = numbers["chosen_difference"]
    if last["stage"] not in ("repaired", "tuned") or before is None:
        return f"; {many} cost {_lost(random)}"
    return f"; before {last['stage'].replace('ed', 'ing')} they cost {_lost(before)}, {many} {_lost(random)}"


def _lost(change: float) -> str:
    """Return a fall of a share in points."""
    return f"{0.0 - round(100 * change, 1):.1f}"


def _kept(run: Run) -> list[str]:
    text = []
    for _, entry, table in run.of_kind("per_head"):
        if entry.decides and "kept" in table.columns:
            columns = {kind: atlas.of_units(table, kind).column("kept") for kind in KINDS}
            counts = [
                f"{sum(kept)} of {counted(len(kept), kind)}"
                for kind, kept in columns.items()
                if kept
            ]
            text.append(f"{' and '.join(counts)} are those that {KEEPS[entry.decides]}.")
    if stages := run.rows("stages"):
        first, last = stages[0], stages[-1]
        change = (
            " (test images chose the heads: these numbers are too good)"
            if last.get("p", 1) is None
            else ""
        )
        if (p := last.get("p")) is not None:  # against the dense network, image by image
            change = ", " + _points(last, f"; McNemar's p = {p:.2g}")
        text.append(
            f"Test {atlas.score_name(run, 'stages')} goes from {accuracy_with_interval(first)} to "
            f"{accuracy_with_interval(last)}{change}, "
            f"parameters from {first['parameters']:,} to {last['parameters']:,}."
        )
    return text


def _speed(run: Run) -> list[str]:
    """Return the speed-up of the removed heads at the largest batch."""
    if not (rows := run.rows("speed")):
        return []
    row = max(
        (row for row in rows if row["removed"] == rows[0]["removed"]), key=lambda row: row["batch"]
    )
    low, high = row["speedup_low"], row["speedup_high"]  # none where too few timings were taken
    within = (
        "too few rounds for an interval"
        if low is None or high is None
        else f"{low:.2f} to {high:.2f} over rounds"
    )
    return [
        f"At batch {row['batch']} the pruned network is {row['speedup']:.2f} times as fast as the "
        f"dense one ({within}) "
        f"on {row['device']}; its FLOPs predict {row['predicted']:.2f}."
    ]


def _maps(run: Run) -> list[str]:
    """Return the mean faithfulness of each kind of map."""
    rows = [row for row in run.rows("maps") if "deletion" in row and None not in row.values()]
    text = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of = [row for row in rows if row["kind"] == kind]
        names = ("deletion", "random_deletion", "insertion", "random_insertion")
        down, down_by_chance, up, up_by_chance = (
            sum(row[name] for row in of) / len(of) for name in names
        )
        text.append(
            f"{kind}: deletion {down:.2f} (random orders {down_by_chance:.2f}; lower is better), "
            f"insertion {up:.2f} "
            f"(random orders {up_by_chance:.2f}; higher is better), mean over "
            f"{counted(len(of), 'map')}."
        )
    return text


def unread(runs: Sequence[Run]) -> list[str]:
    """Return a sentence on each run of which something could not be read."""
    return [
        f"Of {run.name} could not be read: {'; '.join(run.unread)}." for run in runs if run.unread
    ]


def best_methods(rows: Sequence[Mapping[str, Any]], repeats: str = "seeds") -> list[str]:
    """Name the best method of PruneBench at each budget, and those that are significantly worse."""
    text, out = list[str](), [row for row in rows if not row["seeds"]]
    for budget in dict.fromkeys(row["budget"] for row in rows if row["seeds"]):
        best, *others = (row for row in rows if row["budget"] == budget and row["seeds"])
        worse = [row["method"] for row in others if significant(row.get("p_holm"))]
        place, rest = "has", ""
        if others:
            place = f"is the best of {1 + len(others)} methods, with"
            rest = f" Significantly worse: {', '.join(worse) or 'none'}."
        text.append(
            f"At {100 * budget:g} % of the FLOPs {best['method']} {place} an accuracy of "
            f"{percent_of(best['accuracy'])} "
            f"(dense {percent_of(best['dense'])}; {best['stage']}, {repeats}: {best['seeds']}).{rest}"
        )
    for budget in dict.fromkeys(row["budget"] for row in out):
        names = ", ".join(row["method"] for row in out if row["budget"] == budget)
        text.append(
            f"At {100 * budget:g} % of the FLOPs no place (failed, or lack the others' {repeats}): "
            f"{names}."
        )
    return text


def _extremes(heads: list[dict[str, Any]], measure: dict[str, Any]) -> list[str]:
    order = by_size(measure)
    if len(order) < 4 or len(set(values(measure))) <= 2:
        return []
    most, least = (
        "; ".join(": ".join(named(heads, measure, flat)) for flat in some)
        for some in (order[:3], order[-3:][::-1])
    )
    unsure = (
        " Heads whose intervals overlap are not told apart." if measure["low"] is not None else ""
    )
    return [f"By {measure['name']} the highest heads are {most}. The lowest are {least}.{unsure}"]


def _against(measure: Mapping[str, Any]) -> list[str]:
    columns = list(zip(values(measure), measure["chance"] or [], strict=False))
    tested = [flat for flat, pair in enumerate(columns) if None not in pair]
    if not tested:
        return []
    levels = [measure["chance"][flat] for flat in tested]
    text = " to ".join(dict.fromkeys(rounded(level, 3) for level in (min(levels), max(levels))))
    if measure["reference"] == "even attention":  # nothing was drawn: no test, and often the most
        return [f"even attention would give {text}"]
    if None in (measure["freedom"], measure["low"]) or "value" not in measure["columns"]:
        return [f"chance gives {text}"]
    tested = [flat for flat in tested if measure["low"][flat] is not None]
    value, low, high, level = (
        torch.tensor([column[flat] for flat in tested], dtype=torch.float64)
        for column in (values(measure), measure["low"], measure["high"], measure["chance"])
    )
    half = torch.where(value > level, value - low, high - value)
    sure = significant(holm(p_of_interval(value - level, half, measure["freedom"])))
    above, below = int((sure & (value > level)).sum()), int((sure & (value < level)).sum())
    return [
        f"chance gives {text}; {above} of {len(tested)} heads lie above it and {below} below "
        "(Holm, 5 %)"
    ]


def _twin(measure: Mapping[str, Any]) -> list[str]:
    twin = [value for value in measure["twin"] or [] if value is not None]
    if not twin:
        return []
    above = sum(value > max(twin) for value in values(measure) if value is not None)
    return [
        f"a random network's heads reach {rounded(min(twin), 3)} to {rounded(max(twin), 3)}; above "
        f"that: {above}"
    ]
