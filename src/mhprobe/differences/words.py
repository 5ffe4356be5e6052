"""Sentences on two networks: the first three carry the answer."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from mhprobe.differences.compare import RATE, Explained, Measured, Outputs, Verdict
from mhprobe.differences.errors import PARTS, Pairs
from mhprobe.heads import HeadLayout
from mhprobe.io.written import counted, percent, rounded

CALLED = {
    "heads": "its heads",
    "projection": "its attention's projection",
    "neurons": "its neurons",
    "mlp output": "its MLP's last layer",
}
REFERENCE = {
    "rounding": "the same network with other batch sizes, threads and precision",
    "images": "the same head on another photograph",
}


class Found(NamedTuple):
    """All that sentences are made of. layout: of A's heads. explained: by block, as of ``compare.explained``.

    reference: what nothing looks like, in words. tolerance: of blocks, if one was given.
    """

    names: tuple[str, str]
    layout: HeadLayout
    pairs: Pairs
    measured: Measured
    verdict: Verdict
    outputs: Outputs
    explained: Mapping[int, Mapping[str, Explained]]
    reference: str
    tolerance: float | None = None


def share(value: float) -> str:
    """Write a relative error: in per cent, or as a power of ten where that is tiny.

    >>> share(0.31), share(0.0042), share(3e-7), share(0.0), share(float("inf"))
    ('31 %', '0.42 %', '3e-07', '0', 'no number')
    """
    if not math.isfinite(value):
        return "no number"
    if value == 0:
        return "0"
    return percent(value) if value >= 1e-4 else f"{value:.1g}"


def sentences(found: Found) -> list[str]:
    """Return the sentences, the most telling first."""
    lines = [
        _where(found),
        *_explains(found),
        end(found.outputs, len(found.measured.ours)),
        *_heads(found),
        *_same(found),
    ]
    return [*lines, *_removed(found)]


def _where(found: Found) -> str:
    verdict, own = found.verdict, found.measured.own
    if verdict.pixels:
        apart = share(float(found.measured.pixels.mean()))
        return (
            f"The two networks are given other images: their means and deviations of pixels differ, "
            f"by {apart} of the normalised image."
        )
    if found.measured.null == "images":
        return _most_changed(found)
    if verdict.embedding:
        apart = share(float(own.arriving[:, 0].mean()))
        return (
            f"The embedding is the first part that computes differently: patches, positions or class "
            f"tokens come to the first block with an error of {apart}."
        )
    if verdict.first is None:
        return _nothing(found)
    number = verdict.first
    if number and bool(verdict.between[number]) and not bool(verdict.between[:number].any()):
        apart = share(float(own.arriving[:, number].mean()))
        return f"What stands in front of block {number} computes differently, with an error of {apart}."
    first, nothing = "is the first that computes differently", _level(found, number)
    if found.tolerance is not None:
        first, nothing = "is the first that leaves its tolerance", share(found.tolerance)
    against = f"({'nothing' if found.tolerance is None else 'tolerance'}: {nothing})"
    return f"Block {number} {first}: {_what(found, number)}, own error {_worst(found, number)} {against}."


def _what(found: Found, number: int) -> str:
    """Return the head of a block with the largest own error, or else its part."""
    heads = [flat for flat in _of_block(found.layout, number) if bool(found.verdict.flagged[flat])]
    part = _largest_part(found, number)
    gone = _gone(found, number, part)
    if gone:
        return gone
    if part in ("neurons", "mlp output") or not heads:
        return CALLED[part]
    worst = max(heads, key=lambda flat: _mean(found.measured.own.heads[:, flat]))
    more = f" and {len(heads) - 1} more" if len(heads) > 1 else ""
    return f"head {_numbered(found, worst)}{more}"


def _gone(found: Found, number: int, part: str) -> str:
    """Say that units of a block are gone, if its largest part is of such units; "" if none are."""
    kinds = {"heads": ("head", found.pairs.heads), "neurons": ("neuron", found.pairs.neurons)}
    kind, pairs = kinds.get(part, ("", []))
    here = [pair for pair in pairs if pair.site.block == number]
    count = sum(len(pair.removed) for pair in here)
    if not count:
        return ""
    every = sum(len(pair.numbers) for pair in here)
    return f"{count} of its {every} {kind}s {'is' if count == 1 else 'are'} gone"


def _worst(found: Found, number: int) -> str:
    heads = [flat for flat in _of_block(found.layout, number) if bool(found.verdict.flagged[flat])]
    if _largest_part(found, number) in ("neurons", "mlp output") or not heads:
        return share(_mean(found.measured.own.blocks[:, number]))
    return share(max(_mean(found.measured.own.heads[:, flat]) for flat in heads))


def _level(found: Found, number: int) -> str:
    level = found.measured.level
    return share(found.measured.eps if level is None else float(level.blocks[number]))


def _largest_part(found: Found, number: int) -> str:
    parts = [_mean(found.measured.rest.parts[:, number, at]) for at in range(len(PARTS))]
    return PARTS[max(range(len(PARTS)), key=lambda at: parts[at])]


def _most_changed(found: Found) -> str:
    flagged = found.verdict.flagged.nonzero().flatten().tolist()
    total = found.layout.num_heads
    if not flagged:
        return (
            f"No head of {total} changed by more than {_limit(found)} (false discovery rate "
            f"{rounded(RATE)})."
        )
    rest = found.measured.rest
    worst = max(flagged, key=lambda flat: _mean(rest.heads[:, flat]))
    return (
        f"{counted(len(flagged), 'head')} of {total} changed by more than {_limit(found)} (false "
        f"discovery rate {rounded(RATE)}): {found.layout.name_of(worst)} most, by "
        f"{share(_mean(rest.heads[:, worst]))} of what it wrote."
    )


def _limit(found: Found) -> str:
    """Say what a change of a head between two trainings is held against."""
    usual = found.reference == REFERENCE["images"]
    return "heads do between two photographs" if usual else found.reference


def _nothing(found: Found) -> str:
    own, verdict = found.measured.own, found.verdict
    if verdict.last:
        return (
            "All blocks compute alike; what stands behind the last one (norm, pooling, classifier) "
            f"does not: own error {share(_mean(own.last))}."
        )
    blocks = own.blocks.mean(0)
    worst = int(blocks.argmax())
    if found.tolerance is not None:
        return (
            f"No block leaves the tolerance of {share(found.tolerance)}: the largest own error is "
            f"{share(float(blocks[worst]))} of what block {worst} writes."
        )
    return (
        f"No block computes differently: the largest own error is {share(float(blocks[worst]))} of "
        f"what block {worst} writes, and {found.reference} gives {_level(found, worst)}."
    )


def _explains(found: Found) -> Iterator[str]:
    """Sentences on blocks whose difference was given to A alone."""
    before, after = found.outputs.before, found.outputs.after
    for number, parts in found.explained.items():
        whole = parts["block"]
        single = {name: parts[name] for name in PARTS}
        lost = {
            name: 0.0 if before is None or of.accuracy is None else 100 * (before - of.accuracy)
            for name, of in parts.items()
        }
        own = lost.pop("block")
        if before is not None and after is not None and before != after and own:
            name = max(lost, key=lambda one: lost[one])
            yield (
                f"Block {number} alone explains {rounded(own)} of {rounded(100 * (before - after))} "
                f"points of accuracy; {CALLED[name]} alone {rounded(lost[name])}."
            )
            continue
        name = max(single, key=lambda one: single[one].error)
        if whole.error > 1.1 * found.outputs.error:
            yield (
                f"Block {number} alone would move the {_ends(found.outputs)} by {share(whole.error)}, more than "
                f"all differences together ({share(found.outputs.error)}): other blocks make up for it."
            )
            continue
        yield (
            f"Block {number} alone moves the {_ends(found.outputs)} by {share(whole.error)}, of "
            f"{share(found.outputs.error)} in all; {CALLED[name]} alone by {share(single[name].error)}."
        )


def end(outputs: Outputs, count: int) -> str:
    """Say how the ends of two networks differ. count: of images."""
    text = f"At the end the {_ends(outputs)} differ by {share(outputs.error)}"
    if outputs.agreement is not None:
        text += f", and {round(outputs.agreement * count)} of {count} images get the same class"
    if outputs.paired is not None and outputs.before is not None and outputs.after is not None:
        of = outputs.paired
        text += (
            f"; accuracy goes from {percent(outputs.before, 3)} to {percent(outputs.after, 3)} "
            f"(difference {100 * of.difference:+.1f} points, {100 * of.low:+.1f} to "
            f"{100 * of.high:+.1f}, p = {rounded(of.p)})"
        )
    return f"{text}."


def _ends(outputs: Outputs) -> str:
    return "features" if outputs.agreement is None else "logits"


def _heads(found: Found) -> Iterator[str]:
    if found.measured.null == "images":
        return
    flagged = found.verdict.flagged.nonzero().flatten().tolist()
    compared = int((~found.verdict.p.isnan()).sum())
    if not flagged:
        left = " that are left" if compared < found.layout.num_heads else ""
        yield (
            f"None of {compared} heads{left} computes differently, by more than {found.reference} (false "
            f"discovery rate {rounded(RATE)})."
        )
        return
    if len(flagged) == compared > 1:
        yield (
            f"All {compared} heads compute differently by more than {found.reference} (false discovery "
            f"rate {rounded(RATE)})."
        )
        return
    names = ", ".join(found.layout.name_of(flat) for flat in flagged[:5])
    more = f" and {len(flagged) - 5} more" if len(flagged) > 5 else ""
    yield (
        f"{counted(len(flagged), 'head')} of {compared} computes differently by more than "
        f"{found.reference} (false discovery rate {rounded(RATE)}): {names}{more}."
        if len(flagged) == 1
        else f"{counted(len(flagged), 'head')} of {compared} compute differently by more than "
        f"{found.reference} (false discovery rate {rounded(RATE)}): {names}{more}."
    )


def _same(found: Found) -> Iterator[str]:
    """Say how many heads are still most like themselves, where heads may have changed places."""
    if found.measured.null != "images":
        return
    kept, alike = 0, 0
    for pair, similar in zip(found.pairs.heads, found.measured.similar, strict=True):
        for mine, theirs in zip(pair.mine, pair.theirs, strict=True):
            kept += 1
            alike += int(similar[mine].argmax()) == theirs
    yield f"{alike} of {kept} heads are more like themselves before than like any other head of their block (CKA)."


def _removed(found: Found) -> Iterator[str]:
    for kind, pairs in (("head", found.pairs.heads), ("neuron", found.pairs.neurons)):
        count = sum(len(pair.removed) for pair in pairs)
        if count:
            blocks = len({pair.site.block for pair in pairs if pair.removed})
            yield (
                f"{counted(count, kind)} of {counted(blocks, 'block')} are gone; the others are "
                "compared by their numbers."
            )


def _of_block(layout: HeadLayout, number: int) -> list[int]:
    return [flat for flat, (_, _, site) in enumerate(layout) if site.block == number]


def _numbered(found: Found, flat: int) -> int:
    number, index, _ = list(found.layout)[flat]
    return found.pairs.heads[number].numbers[index]


def _mean(values: Tensor) -> float:
    return float(values.mean())
