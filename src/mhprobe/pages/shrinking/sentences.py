"""Sentences on a shrunk network: what it lost and gained, what random heads cost, and what to type next."""

import shlex
from pathlib import Path
from typing import Any

from mhprobe.heads import KINDS
from mhprobe.io.progress import duration
from mhprobe.io.written import counted, rounded
from mhprobe.masking.base import LABELS
from mhprobe.pages.shrinking.images import settings_for_train
from mhprobe.pages.shrinking.recipe import SURGERY, WRITTEN, Shrunk
from mhprobe.pruning.rounds import Stage
from mhprobe.surgery.costs import count_parameters

OF_UNIT = {"flops": "the FLOPs", "params": "the parameters", "latency": "the time"}
BY = {"fisher": "Fisher information", "obs": "optimal brain surgery"}
SMALL = (
    5_000_000  # parameters of a network for which docs/prunebench.md found another learning rate
)


def share_words(shrunk: Shrunk) -> str:
    """Say what may be left, e.g. "half the FLOPs" or "60 % of the FLOPs"."""
    of = OF_UNIT[shrunk.target.unit]
    half = shrunk.target.share == 0.5
    return f"half {of}" if half else f"{rounded(100 * shrunk.target.share, 3)} % of {of}"


def first_sentence(shrunk: Shrunk) -> str:
    """Return the first sentence: what was lost on how many images, and what was gained."""
    row = next(row for row in shrunk.speeds if row["batch"] == 1)
    images = f"{shrunk.after.images:,} {_noun(shrunk)}"
    lost = f"{points(shrunk.after)} on {images}"
    if shrunk.pruned.scored != LABELS:
        lost = f"another class than the whole network's for {_other(shrunk.after)} of {images}"
    return f"{shrunk.network.name} at {share_words(shrunk)}: {lost}; {faster(row)}."


def faster(row: dict[str, Any]) -> str:
    """Say how much faster a row of ``speed_table`` is, if its whole interval lies above 1."""
    if row["speedup_low"] > 1:
        return f"{row['speedup']:.2g} times as fast at batch {row['batch']}"
    ends = f"{row['speedup_low']:.2g} to {row['speedup_high']:.2g} times"
    return f"not shown to be faster at batch {row['batch']} ({ends})"


def points(row: Stage) -> str:
    """Say how far below the whole network a row is, with the paired interval."""
    value, low, high = (
        -100 * part for part in (row.difference, row.difference_high, row.difference_low)
    )
    if round(value, 1) < 0:
        return f"{-value:.1f} points higher ({-high:.1f} to {-low:.1f})"
    return f"{abs(value):.1f} points lower ({low:.1f} to {high:.1f})"


def _other(row: Stage) -> str:
    low, high = 1 - row.high, 1 - row.low
    return f"{100 * (1 - row.accuracy):.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _noun(shrunk: Shrunk) -> str:
    return "photographs" if shrunk.data.unlabelled else "test images"


def _chosen(shrunk: Shrunk) -> str:
    return "photograph" if shrunk.data.unlabelled else "training image"


def told(shrunk: Shrunk) -> list[str]:
    """Return the sentences of the page, the first one first."""
    return [
        first_sentence(shrunk),
        _accuracy(shrunk),
        _random(shrunk),
        _speed(shrunk),
        _size(shrunk),
    ]


def _accuracy(shrunk: Shrunk) -> str:
    after, before, right = shrunk.after, shrunk.before, shrunk.pruned.scored.right
    if shrunk.pruned.scored != LABELS:
        return (
            "The photographs have no labels: the whole network's own classes stand in for them, "
            f"and {right} is {_percent(after)}."
        )
    seen = ""
    if shrunk.pruned.optimistic:
        seen = " Test images chose heads of these weights, so both are too good."
    if before.low <= 1 / shrunk.data.num_classes:
        seen += " The whole network is not told apart from guessing, so this says little."
    return (
        f"The whole network has {_percent(before)} test {right}, the smaller one {_percent(after)}, "
        f"without any training after the removal.{seen}"
    )


def _percent(row: Stage) -> str:
    return f"{100 * row.accuracy:.1f} % ({100 * row.low:.1f} to {100 * row.high:.1f})"


def _random(shrunk: Shrunk) -> str:
    cost = points(shrunk.control)
    if shrunk.pruned.scored != LABELS:
        cost = f"another class for {_other(shrunk.control)}"
    goal = "as many FLOPs" if shrunk.target.unit == "latency" else "the same target"
    return (
        f"As a control one draw of random heads and neurons went, to {goal}, and the layers were "
        f"repaired alike: {cost}."
    )


def _speed(shrunk: Shrunk) -> str:
    parts = [
        f"{row['speedup']:.2f} times as fast ({row['speedup_low']:.2f} to "
        f"{row['speedup_high']:.2f}) at batch {row['batch']}"
        for row in shrunk.speeds
    ]
    return (
        f"Measured here it is {' and '.join(parts)}; FLOPs predict "
        f"{shrunk.speeds[0]['predicted']:.2f} ({shrunk.speeds[0]['device']})."
    )


def _size(shrunk: Shrunk) -> str:
    after, before = shrunk.after, shrunk.before
    mega = [count * 4 / 1e6 for count in (before.parameters, after.parameters)]
    return (
        f"FLOPs per image {before.flops:,} -> {after.flops:,}, parameters {before.parameters:,} -> "
        f"{after.parameters:,}, {rounded(mega[0], 3)} -> {rounded(mega[1], 3)} MB as float32; "
        f"{left(shrunk)} are left."
    )


def left(shrunk: Shrunk) -> str:
    """Count the heads and neurons that are left."""
    numbers = {"head": (shrunk.after.heads, shrunk.before.heads)}
    numbers["neuron"] = shrunk.after.neurons, shrunk.before.neurons
    return " and ".join(
        f"{numbers[kind][0]:,} of {numbers[kind][1]:,} {kind}s"
        for kind in KINDS
        if numbers[kind][0] is not None
    )


def what_it_took(shrunk: Shrunk) -> list[str]:
    """Return lines on what was done, and what it took."""
    pieces = [f"{name} {duration(took)}" for name, took in shrunk.seconds.items()]
    why = "docs/prunebench.md found it best at half of the FLOPs"
    if shrunk.order == "obs":
        why = f"below {SURGERY} of the cost, where docs/prunebench.md found it best"
    return [
        f"Heads and neurons went by {BY[shrunk.order]} per cost ({why}), on "
        f"{counted(shrunk.images, _chosen(shrunk))}; the same images repaired the layers by least "
        "squares, without training.",
        f"It took {duration(sum(shrunk.seconds.values()))}: {', '.join(pieces)}.",
        f"Before the repair the pruned network's logits {_apart(shrunk.pruned.difference)} the masked "
        f"network's; read again from its file the smaller network's {_apart(shrunk.loaded)} those "
        "before it was written.",
        shrunk.onnx or "pruned.onnx was run with ONNX Runtime and gives the same logits.",
    ]


def _apart(difference: float) -> str:
    return f"differ by at most {difference:.2g} from" if difference else "are equal to"


def tuning(shrunk: Shrunk, folder: Path) -> str:
    """Return the command that tunes the smaller network with the whole one as teacher; "" without labels."""
    if not (data := settings_for_train(shrunk.data)):
        return ""
    quoted = shlex.quote(str(folder / WRITTEN))
    rate = "optim.lr=2e-5"
    if count_parameters(shrunk.network.model) < SMALL:
        rate = "optim.lr=5e-4"
    elif shrunk.target.share < SURGERY:
        rate = "optim.lr=3e-4 optim.layer_decay=0.75 optim.algorithm=muon"
    backbone: dict[str, Any] = shrunk.network.description["backbone"]
    whole = " backbone.patch_drop_rate=0" if backbone.get("patch_drop_rate") else ""
    return (
        f"python -m mhprobe.train weights={quoted} {data} data.batch_size=32{whole} {rate} "
        "optim.warmup_epochs=0.2 trainer.max_epochs=3 trainer.precision=bf16-mixed "
        f"optim.teacher={shlex.quote(str(shrunk.network.file))} optim.teacher_sees=whole "
        "optim.teacher_weight=0.8 masking=none measure=[]"
    )
