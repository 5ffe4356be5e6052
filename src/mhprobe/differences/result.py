"""Tables, numbers and files of a comparison, in the forms of the ledger."""

import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.differences.compare import Ends, Measured, Outputs, Verdict, neuron_groups
from mhprobe.differences.errors import GROUPS, PARTS, Pairs
from mhprobe.differences.words import Found
from mhprobe.errors import UserError, nearest, quoted
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.readings import Reading
from mhprobe.report import ledger
from mhprobe.report.result import Result, Sample
from mhprobe.report.tables import Table, per_head, write_csv
from mhprobe.stats.intervals import bootstrap

FILE = "diff.json"
TALL = 900  # pixels of the page in a notebook's cell
TOLERATED = ("head", "block", "logits", "agreement", "accuracy")
COLUMNS = {
    "inherited": "error of what the head writes because its input differs",
    "total": "error of what the head writes, network against network",
    "attention_own": "Jensen-Shannon divergence of attention on the same input, over ln 2",
    "attention": "Jensen-Shannon divergence of attention, network against network, over ln 2",
    "cka": "similarity of its outputs (linear CKA)",
    "nearest": "the head of the other network's site that is most like it, by CKA",
    "number": "its number in the dense network",
    "p": "that it differs by no more than nothing does",
    "q": "p, adjusted for all heads (Benjamini-Hochberg)",
    "flagged": "1 if q is below .05",
    "svcca": "similarity of its outputs in the two networks (SVCCA), with svcca_low and svcca_high",
    "svcca_null": "the same on two different images, which is chance",
    "importance_before": "importance by slopes in the first network; importance_after in the second",
    "importance_change": "after less before, with importance_low and importance_high",
    "importance_p": "that a measure does not change (Holm over heads and measures)",
}

OF_PHOTOGRAPHS = {
    "value": "length of the difference of both answers, over the length of the first",
    "before": "class that the first network answers",
    "after": "class that the second network answers",
    "label": "class that is right",
}


class Diff(NamedTuple):
    """Differences between two networks.

    sentences: the answer first. heads, blocks, neurons: tables, a row each. metrics: numbers.
    outside: what leaves a tolerance, in words. notes: on choices that were made, and on what could
    not be compared. page: renders the HTML that a notebook shows. readings: by network, how its
    file and its images are interpreted. course: a row for each head at each checkpoint between the
    two; None without any. measures: words for what is measured before and after, by the beginning
    of its columns. photographs: a row for each image, with what both networks answer.
    """

    sentences: Sequence[str]
    heads: Table
    blocks: Table
    neurons: Table
    metrics: Mapping[str, Any]
    outside: Sequence[str] = ()
    notes: Sequence[str] = ()
    page: Callable[[], str] | None = None
    images: int = 0
    readings: Sequence[tuple[str, Sequence[Reading]]] = ()
    course: Table | None = None
    measures: Mapping[str, str] = MappingProxyType({})
    photographs: Table | None = None

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, *(f"Outside: {line}" for line in self.outside)])

    def _repr_html_(self) -> str:
        text = (
            html.escape(self.page() if self.page else str(self))
            .encode("ascii", "xmlcharrefreplace")
            .decode()
        )
        frame = f'title="diff" sandbox="allow-scripts" style="width:100%;height:{TALL}px;border:0"'
        return f'<iframe {frame} srcdoc="{text}"></iframe>'

    def save(self, folder: str | Path) -> Path:
        """Write diff.json, metrics.json, inputs.json, the tables and the page into a folder.

        inputs.json: by network, how its file and its images were interpreted. Returns the page, or
        diff.json where there is none.

        Raises UserError for a folder that cannot be written.
        """
        place = Path(folder).expanduser()
        parts = self.results()
        of = Sample(self.images, "photographs")
        book = ledger.Ledger(
            version=2,
            results={
                name: ledger.entry(name, part._replace(of=of)) for name, part in parts.items()
            },
        )
        for name, part in parts.items():
            if part.table is not None:
                write_csv(place / "tables" / f"{name}.csv", part.table)
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in self.metrics.items()
        }
        write(place / "metrics.json", (json.dumps(plain, indent=2) + "\n").encode())
        inputs = [
            {"network": name, "inputs": [one.plain() for one in of]} for name, of in self.readings
        ]
        write(place / "inputs.json", (json.dumps(inputs, indent=2) + "\n").encode())
        file = write(place / FILE, book.model_dump_json(indent=1, exclude_defaults=True).encode())
        return file if self.page is None else write(place / "diff.html", self.page().encode())

    def results(self) -> dict[str, Result]:
        """Return the results by their names, as the ledger describes them."""
        label, larger = "own error, share of what is written", "computes more differently"
        heads = Result(table=self.heads, columns=COLUMNS).saying(label, larger)
        blocks = Result(table=self.blocks).saying(label, larger)
        neurons = Result(table=self.neurons).saying(label, larger)
        photographs = Result(table=self.photographs, columns=OF_PHOTOGRAPHS).saying(
            "error of the logits or features, share of their length", "is answered more differently"
        )
        along = {}
        if self.course is not None:
            drawn = Result(table=self.course)
            along = {"diff_course": drawn.saying("measures along training", "of each its own")}
        return {
            "diff": Result(metrics=self.metrics, about=" ".join(self.sentences)),
            **({"diff_heads": heads} if self.heads.rows else {}),
            **({"diff_blocks": blocks} if self.blocks.rows else {}),
            **({"diff_neurons": neurons} if self.neurons.rows else {}),
            **({"diff_photographs": photographs} if self.photographs is not None else {}),
            **along,
        }


def head_table(found: Found, more: Mapping[str, Tensor]) -> Table:
    """A row per head of A. more: further columns (A,), as importance."""
    measured, verdict, rest = found.measured, found.verdict, found.measured.rest
    value = measured.own.heads if measured.null == "rounding" else rest.heads
    low, high = bootstrap(value.T)
    level = measured.level.heads if measured.level is not None else _mean(measured.between, 1)
    columns = {
        "value": value.mean(0),
        "low": low,
        "high": high,
        "null": level,
        "own": measured.own.heads.mean(0),
        "inherited": rest.inherited_heads.mean(0),
        "total": rest.heads.mean(0),
        "attention_own": measured.own.attention.mean(0),
        "attention": rest.attention.mean(0),
        **_alike(found.pairs, measured),
        "number": torch.tensor([number for pair in found.pairs.heads for number in pair.numbers]),
        "p": verdict.p,
        "q": verdict.q,
        "flagged": verdict.flagged.long(),
        **more,
    }
    return per_head(found.layout, columns)


def _mean(between: tuple[Tensor, ...] | None, at: int) -> Tensor:
    assert between is not None
    return between[at].mean(0)


def _alike(pairs: Pairs, measured: Measured) -> dict[str, Tensor]:
    """(A,) CKA with itself, and the number of the head that is most like it; NaN and -1 for those that are gone."""
    cka, nearest_one = list[float](), list[int]()
    for pair, similar in zip(pairs.heads, measured.similar, strict=True):
        theirs = dict(zip(pair.mine, pair.theirs, strict=True))
        for head in range(pair.site.num_heads):
            other = theirs.get(head)
            cka.append(math.nan if other is None else float(similar[head, other]))
            best = int(similar[head].argmax()) if similar.numel() else -1
            nearest_one.append(pair.numbers[pair.mine[best]] if best >= 0 else -1)
    return {"cka": torch.tensor(cka), "nearest": torch.tensor(nearest_one)}


def block_table(layout: HeadLayout, found: Found) -> Table:
    """A row per block, and one each for the embedding and for what stands behind the last block."""
    measured, verdict = found.measured, found.verdict
    own, rest, level = measured.own, measured.rest, measured.level
    names = ["value", "null", "inherited", "total", *(part.replace(" ", "_") for part in PARTS)]
    nothing = [math.nan] * (len(names) - 2)

    def null(of: Tensor | None) -> float:
        return math.nan if of is None else float(of)

    rows: list[list[Any]] = [
        [
            *("embedding", -1, float(own.arriving[:, 0].mean())),
            null(None if level is None else level.arriving[0]),
            *(*nothing, int(verdict.embedding)),
        ]
    ]
    for number, block in enumerate(layout.blocks):
        numbers = [
            own.blocks[:, number].mean(),
            rest.inherited[:, number].mean(),
            rest.total[:, number].mean(),
            *rest.parts[:, number].mean(0),
        ]
        values = [float(one) for one in numbers]
        values.insert(1, null(_level_of(measured, number)))
        rows.append([block.name, number, *values, int(verdict.blocks[number])])
    last = null(None if level is None else level.last)
    rows.append(
        ["last", len(layout.blocks), float(own.last.mean()), last, *nothing, int(verdict.last)]
    )
    return Table(["part", "block", *names, "flagged"], rows)


def _level_of(measured: Measured, number: int) -> Tensor:
    if measured.level is not None:
        return measured.level.blocks[number]
    assert measured.between is not None
    return measured.between[0][:, number].mean()


def neuron_table(pairs: Pairs, measured: Measured) -> Table:
    """A row per group of an MLP's neurons, by their numbers in the dense network."""
    rows = []
    level = measured.level
    counts = {pair.site.block: max(pair.numbers) + 1 for pair in pairs.neurons if pair.numbers}
    for at, (block, group) in enumerate(neuron_groups(pairs)):
        count = counts.get(block, 0)
        ends = [math.ceil(count * edge / GROUPS) for edge in (group, group + 1)]
        null = math.nan if level is None else float(level.neurons[at])
        rows.append([block, ends[0], ends[1] - 1, float(measured.own.neurons[:, at].mean()), null])
    return Table(["block", "first", "last", "value", "null"], rows)


def photograph_table(names: Sequence[str], ends: Ends, labels: Tensor | None) -> Table:
    """A row per photograph. names: (N,) of files. labels: (N,) or None."""
    columns: dict[str, Sequence[Any]] = {"file": names, "value": ends.errors.tolist()}
    if ends.classes:
        columns |= {"before": ends.ours.argmax(1).tolist(), "after": ends.theirs.argmax(1).tolist()}
        columns |= {} if labels is None else {"label": labels.tolist()}
    return Table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def numbers(measured: Measured, verdict: Verdict, outputs: Outputs) -> dict[str, Any]:
    """Return the numbers of metrics.json."""
    found: dict[str, Any] = {
        "diff/images": len(measured.ours),
        "diff/heads_flagged": int(verdict.flagged.sum()),
        "diff/heads": int((~verdict.p.isnan()).sum()),
        "diff/first_block": verdict.first,
        "diff/own_error_of_embedding": float(measured.own.arriving[:, 0].mean()),
        "diff/largest_own_error_of_a_block": float(measured.own.blocks.mean(0).max()),
        "diff/largest_own_error_of_a_head": float(measured.own.heads.mean(0).nan_to_num(0).max()),
        **numbers_of_ends(outputs),
    }
    return {key: value for key, value in found.items() if value is not None or "first" in key}


def numbers_of_ends(outputs: Outputs) -> dict[str, Any]:
    """Return the numbers of the ends of two networks."""
    found: dict[str, Any] = {
        "diff/error_of_logits": outputs.error,
        "diff/agreement": outputs.agreement,
        "diff/accuracy_before": outputs.before,
        "diff/accuracy_after": outputs.after,
    }
    if outputs.paired is not None:
        found |= {f"diff/accuracy_{key}": value for key, value in outputs.paired._asdict().items()}
    return {key: value for key, value in found.items() if value is not None}


def tolerances(given: Any) -> dict[str, float]:
    """Read tolerances: a number for heads, blocks and, with labels, accuracy; or names and numbers.

    given: None, a number, a mapping, or texts as ".01" and "accuracy=.005". Raises UserError for
    other names, and for what is no share from 0 on.
    """
    if given is None:
        return {}
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        given = [str(given)]
    items: Iterable[tuple[Any, Any]] = (
        given.items() if isinstance(given, Mapping) else map(_split, given)
    )
    read: dict[str, float] = {}
    for name, value in items:
        if name not in (*TOLERATED, "all"):
            raise UserError(
                f"diff: tolerance: {nearest(name, TOLERATED)}there is no {quoted(name)}; expected a "
                f"number, or some of {', '.join(f'{one}=NUMBER' for one in TOLERATED)}."
            )
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not 0 <= number < math.inf:
            raise UserError(
                f"diff: tolerance: expected a number of at least 0, as .01, got {quoted(value)}."
            )
        if name in read:
            called = "a number for all" if name == "all" else name
            raise UserError(f"diff: tolerance: {called} is given twice. Give it once.")
        read[str(name)] = number
    return read


def _split(text: object) -> tuple[Any, Any]:
    name, equals, value = str(text).partition("=")
    return (name, value) if equals else ("all", name)


def refuse_untold(limits: Mapping[str, float], labelled: bool, classes: bool) -> None:
    """Raise UserError for a tolerance of what these images and networks do not have."""
    if "accuracy" in limits and not labelled:
        raise UserError(
            "diff: tolerance: accuracy needs labels, and the photographs have none. Give folders of "
            "classes with --labelled, or labels=, or a tolerance of agreement."
        )
    for name in ("accuracy", "agreement"):
        if name in limits and not classes:
            raise UserError(
                f"diff: tolerance: {name} needs a classifier, and the networks give features. Give a "
                "tolerance of logits, block or head."
            )


def outside(found: Found, limits: Mapping[str, float]) -> list[str]:
    """Return what leaves its tolerance, in words; a value that is no number always does."""
    every = limits.get("all")
    held: dict[str, float | None] = {"head": every, "block": every, "accuracy": every, **limits}
    measured, outputs = found.measured, found.outputs
    lines = []
    heads = measured.own.heads.mean(0)
    for name, values in (("head", heads), ("block", measured.own.blocks.mean(0))):
        limit = held.get(name)
        if limit is None:
            continue
        there = ~values.isnan()
        beyond = (there & ~(values <= limit)).nonzero().flatten().tolist()
        if beyond:
            worst = max(beyond, key=lambda at: float(values[at]))
            called = found.layout.name_of(worst) if name == "head" else f"block {worst}"
            lines.append(
                f"{len(beyond)} of {int(there.sum())} {name}s have an own error above {limit:g}, "
                f"{called} most ({float(values[worst]):.3g})."
            )
    return lines + outside_ends(outputs, held)


def outside_ends(outputs: Outputs, held: Mapping[str, float | None]) -> list[str]:
    """Return what leaves its tolerance at the end of the networks, in words."""
    lines = []
    ends = (
        ("logits", outputs.error, "the error of the logits"),
        ("agreement", _lost(1.0, outputs.agreement), "the share of images of another class"),
        ("accuracy", _lost(outputs.before, outputs.after), "the loss of accuracy"),
    )
    for name, value, called in ends:
        limit = held.get(name)
        if limit is not None and value is not None and not value <= limit:
            lines.append(f"{called} is {value:.3g}, above {limit:g}.")
    return lines


def _lost(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after
