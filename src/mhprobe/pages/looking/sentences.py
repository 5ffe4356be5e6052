"""Sentences on a network's heads, each with its number, its 95 % interval over photographs, and its reference.

A reference is what chance, or even attention, would give.

``measure_facts`` measures the heads on the photographs, and those of an untrained network. A rule takes
``Facts`` and returns a sentence, or None. A rule that names heads says by ``HeadClaim`` which are sure,
and how many photographs would decide the others. The rules are the functions that ``rule_for``
marks, in their order.
"""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.io.written import aligned, counted, digits_apart, percent, rounded
from mhprobe.measures.attention_distance import AttentionDistance
from mhprobe.measures.base import Measure, MeasureWarning
from mhprobe.measures.cka import CKA
from mhprobe.measures.entropy import Entropy
from mhprobe.measures.js_distance import JSDistance
from mhprobe.measures.object_attention import ObjectAttention
from mhprobe.measures.parts.functions import FUNCTIONS
from mhprobe.measures.position import Position
from mhprobe.measures.sinks import Sinks
from mhprobe.recording.measuring import measure_columns, record_bytes, said
from mhprobe.stats.agreement import spearman, spearman_interval
from mhprobe.stats.significance import wilson

TOGETHER = 2  # images of a batch: progress moves after each
TWIN = 4  # images that the untrained network is shown
FOLDS = 8  # of the photographs, for the chance of two heads' outputs being alike
NULL = 3  # images that are paired for the chance of two heads' attention being alike
# of single heads, by their names, which are those of their files: an untrained network is measured
# by these
SINGLE = {
    kind.__module__.rpartition(".")[2]: kind
    for kind in (Entropy, AttentionDistance, Position, Sinks)
}
ENDS = ("value", "low", "high")
NAMED = 3  # heads that a sentence names
NEAR = ALIKE = 0.5  # twins: divergence as a share of chance, at most; CKA, at least
OFFSET = FUNCTIONS["offset"].limit  # of the patches from which the offset exists, at least
SINK = FUNCTIONS["sink"].limit  # share of the images, at least
LOCAL = FUNCTIONS["local"].limit  # of the distance of even attention, at most
GLOBAL = FUNCTIONS["global"].limit  # of that of even attention to the whole image, at least
NEARLY = FUNCTIONS["diffuse"].limit  # of the entropy of even attention, at least
STEP = 0.05  # of the distance of even attention, between the first and the last blocks, at least
LEAST = 5  # blocks: fewer cannot be told from shuffled ones
SHUFFLES = 2000
WAYS = (("up", "down"), ("left", "right"))

Columns = Mapping[str, Tensor]
SHARE, PLAIN = " %", ""  # units
Kinds = Mapping[str, Callable[[HeadLayout], Measure]]


class Facts(NamedTuple):
    """Columns of measures by name, and reasons for missing ones.

    images: number of photographs. twin: of an untrained network; empty if ``refused`` has a reason
    for "untrained".
    """

    layout: HeadLayout
    images: int
    measures: Mapping[str, Columns]
    twin: Mapping[str, Columns]
    refused: Mapping[str, str]

    def columns(self, name: str, of_twin: bool = False) -> Columns:
        """Return a measure's columns. Raises UserError with the reason if there are none."""
        columns = self.twin if of_twin else self.measures
        if name not in columns:
            raise UserError(
                self.refused.get("untrained" if of_twin else name, "it was not measured")
            )
        return columns[name]

    def shown(self) -> list[dict[str, Any]]:
        """Return the columns that a page sorts heads by, to four digits; NaN is None."""
        return [
            {"name": SINGLE[name].label}
            | {
                end: [None if x != x else float(f"{x:.4g}") for x in of[end].tolist()]
                for end in ENDS
            }
            for name, of in self.measures.items()
            if name in SINGLE
        ]


def measure_facts(
    model: nn.Module,
    images: Tensor,
    objects: Tensor | None = None,
    twin: Callable[[], nn.Module] | None = None,
    done: Callable[[int], None] = lambda images: None,
) -> Facts:
    """Measure the heads.

    images: (N, 3, height, width), normalised. objects: (N, height, width) int64, 1 on what is
    salient. twin: makes the untrained network, or raises a UserError. done: called with the number
    of images after each batch.
    """
    measures, refused = _measured(
        model, _kinds(objects is not None), Batch.whole(images, objects=objects), done
    )
    reasons = {
        "object_attention": "no masks of objects were given: with --masks FOLDER the page says which heads look at the "
        "object more often than chance",
        **{k: str(v) for k, v in refused.items()},
    }
    others: Mapping[str, Columns] = {}
    try:
        if twin is None:
            raise UserError("no untrained network was asked for")
        others, _ = _measured(twin(), SINGLE, Batch.whole(images[:TWIN]), done)
    except UserError as error:
        reasons["untrained"] = str(error)
    return Facts(attach(model).layout.of("head"), len(images), measures, others, reasons)


def room(model: nn.Module, images: int, objects: bool) -> str:
    """Return in words the memory that ``measure_facts`` takes of so many images; "" if it is small."""
    layout = attach(model).layout.of("head")
    measures = [kind(layout) for kind in _kinds(objects).values()]
    return said(record_bytes(model, measures, min(images, TOGETHER)))


def _kinds(objects: bool) -> Kinds:
    kinds: dict[str, Callable[[HeadLayout], Measure]] = {
        **SINGLE,
        "js_distance": functools.partial(JSDistance, null_images=NULL),
        "cka": functools.partial(CKA, folds=FOLDS),
    }
    return {**kinds, "object_attention": ObjectAttention} if objects else kinds


def _measured(
    model: nn.Module, kinds: Kinds, batch: Batch, done: Callable[[int], None]
) -> tuple[Mapping[str, Columns], Mapping[str, UserError]]:
    layout = attach(model).layout.of("head")
    batch = batch.to(next(model.parameters()).device)
    walk = [
        batch.part(slice(start, start + TOGETHER))
        for start in range(0, len(batch.images), TOGETHER)
    ]
    measures = {name: kind(layout) for name, kind in kinds.items()}
    with warnings.catch_warnings(
        action="ignore", category=MeasureWarning
    ):  # few images: each number says so
        return measure_columns(
            model, measures, lambda: walk, done=lambda batch: done(len(batch.images))
        )


class HeadClaim(NamedTuple):
    """A statement on every head: its value lies beyond a threshold.

    what: as in "may look at one offset". sure (A,) bool: the whole interval lies beyond. needed
    (A,): about so many photographs would decide it; NaN if it is decided.
    """

    what: str
    sure: Tensor
    needed: Tensor

    def of(self, heads: Tensor) -> "HeadClaim":
        """Restrict the claim to some heads, (A,) bool."""
        return HeadClaim(self.what, self.sure & heads, self.needed.where(heads, torch.nan))


class Sentence(NamedTuple):
    """Words about a network. heads: flat indices, those that the text names first."""

    text: str
    heads: tuple[int, ...] = ()
    claim: HeadClaim | None = None


Rule = Callable[[Facts], Sentence | None]
_rules: dict[
    str, Rule
] = {}  # by question, as in "could not be told: which heads are twins", in the order of this file


def rule_for(question: str) -> Callable[[Rule], Rule]:
    """Make a rule of a function."""
    return lambda tell: _rules.setdefault(question, tell)


def sentences(facts: Facts) -> list[Sentence]:
    """Return the sentences of all rules, and a last one on undecided heads and missing facts."""
    replies: list[Sentence] = []
    silent: list[str] = []
    for question, tell in _rules.items():
        try:
            replies += filter(None, [tell(facts)])
        except UserError as error:
            silent.append(f"{question} ({str(error).rstrip('.')})")
    claims = [sentence.claim for sentence in replies if sentence.claim]
    return [*(sentence for sentence in replies if sentence.text), *_untold(claims, silent, facts)]


# ---- rules


@rule_for("which heads look at one fixed offset")
def offset(facts: Facts) -> Sentence:
    """Heads that look at one offset wherever it exists, if it is another patch."""
    table = facts.columns("position")

    def words(best: int, name: str) -> str:
        chance = (
            f"by chance {percent(table['chance'][best])}",
            f"the place exists for {percent(table['reach'][best])}",
        )
        steps = zip((int(table["dy"][best]), int(table["dx"][best])), WAYS, strict=True)
        where = " and ".join(
            f"{abs(step)} {ways[step > 0]}" for step, ways in steps if step
        )  # 2 down and 1 right
        return (
            f"look at one fixed place beside the patch, whatever is there. Surest is {name}: the "
            "most attended patch "
            f"is {where}, for {value_in_words(table, best, SHARE, *chance)} of all patches."
        )

    away = (table["dy"] != 0) | (table["dx"] != 0)
    return _on(
        facts,
        claim_above("look at one offset", table, OFFSET * table["reach"], facts.images).of(away),
        table["value"],
        words,
    )


@rule_for("which heads look at the patch itself")
def itself(facts: Facts) -> Sentence:
    """Heads that look at the patch itself."""
    table = facts.columns("position")

    def words(best: int, name: str) -> str:
        number = value_in_words(table, best, SHARE, f"by chance {percent(table['chance'][best])}")
        return f"look at the patch itself, whatever is there, {name} from {number} of patches."

    home = (table["dy"] == 0) & (table["dx"] == 0)
    return _on(
        facts,
        claim_above("look at the patch itself", table, OFFSET * table["reach"], facts.images).of(
            home
        ),
        table["value"],
        words,
    )


@rule_for("which heads rest on a sink")
def sinks(facts: Facts) -> Sentence:
    """Heads that rest on a sink in half of the images; no-ops among them write next to nothing."""
    table = facts.columns("sinks")
    share = table["sink"].double()
    images = torch.tensor(facts.images)
    low, high = wilson(share * images, images)
    in_images = {"value": share, "low": low, "high": high}
    statement = claim_above("rest on one token", in_images, SINK, facts.images)
    statement = statement._replace(sure=statement.sure & (table["role"] > 0))

    def words(best: int, name: str) -> str:
        silent = int((table["role"][statement.sure] == 1).sum())
        loud = int(statement.sure.sum()) - silent
        at_class = table["class_token"][best].item()
        on = (
            " (the class token)"
            if at_class >= 0.5
            else ""
            if at_class != at_class
            else " (a patch or a register)"
        )
        number = value_in_words(
            table, best, SHARE, f"even attention would give {percent(table['uniform'][best])}"
        )
        no_ops = f"{silent} of them {'is a no-op that adds' if silent == 1 else 'are no-ops that add'} next to nothing"
        others = (
            f"{loud} of them {'copies' if loud == 1 else 'copy'} the token's content to all patches"
        )
        return (
            f"rest on one token, a sink. {name.capitalize()} gives it{on} {number} of all "
            "attention, and writes "
            f"{rounded(table['write'][best])} of the stream's length. "
            f"{'; '.join([no_ops] * (silent > 0) + [others] * (loud > 0))}."
        )

    return _on(facts, statement, table["value"], words)


@rule_for("which heads are twins")
def twins(facts: Facts) -> Sentence | None:
    """Pairs whose attention differs less than half as much as by chance, and whose outputs have a CKA above .5.

    Both hold for the whole interval; the CKA is also above its chance.
    """
    seen, written = facts.columns("js_distance"), facts.columns("cka")
    near = seen["high"] < NEAR * seen["null"]
    pairs = torch.nonzero(
        (near & (written["low"] > ALIKE) & (written["low"] > written["null"])).triu(1)
    )
    if not len(pairs):
        return None
    pairs = pairs[written["value"][pairs[:, 0], pairs[:, 1]].argsort(descending=True, stable=True)]
    named = [
        f"{name_of_head(facts.layout, a)} and head {list(facts.layout)[b][1]}"
        for a, b in pairs[:NAMED].tolist()
    ]
    pair = (int(pairs[0, 0]), int(pairs[0, 1]))
    likeness, divergence = (
        value_in_words(columns, pair, PLAIN, f"by chance {rounded(columns['null'][pair])}")
        for columns in (written, seen)
    )
    also = f" Also {'; '.join(named[1:])}." if named[1:] else ""
    return Sentence(
        f"{counted(len(pairs), 'pair')} of heads {'is' if len(pairs) == 1 else 'are'} twins: they "
        "look at the same "
        f"places and write the same. Most alike are {named[0]}: outputs with a CKA of {likeness}, "
        "attention with a "
        f"divergence of {divergence}.{also}",
        tuple(dict.fromkeys(pairs.flatten().tolist())),
    )


@rule_for("which heads are local")
def reach(facts: Facts) -> Sentence:
    """Heads whose mean attention distance is small beside that of even attention."""
    table = facts.columns("attention_distance")
    value, low, high, even = (table[name] for name in ("value", "low", "high", "uniform"))
    near = claim_above(
        "be local", {"value": -value, "low": -high, "high": -low}, -LOCAL * even, facts.images
    )

    def words(best: int, name: str) -> str:
        return (
            f"are local: they look less than half as far as even attention. {name.capitalize()} "
            "looks nearest, "
            f"{value_in_words(table, best, PLAIN, ('even attention', even[best]))} pixels away "
            "on average."
        )

    return _on(facts, near, -value, words)


@rule_for("which heads are global")
def far(facts: Facts) -> Sentence:
    """Heads whose mean attention distance is near that of even attention to the whole image."""
    table = facts.columns("attention_distance")
    whole = table["whole"]

    def words(best: int, name: str) -> str:
        number = value_in_words(table, best, PLAIN, ("even attention", whole[best]))
        return (
            f"are global: they look more than {percent(GLOBAL)} as far as even attention to the "
            f"whole image. {name.capitalize()} looks farthest, {number} pixels away on average."
        )

    return _on(
        facts,
        claim_above("be global", table, GLOBAL * whole, facts.images),
        table["value"] / whole,
        words,
    )


@rule_for("how distance changes with depth")
def depth(facts: Facts) -> Sentence | None:
    """The rank correlation of depth with the mean distance of a block's heads, as a share of even attention's.

    Shuffled blocks tell which correlations are chance, but not which differences are large (an
    untrained network may rise from 1.0000 to 1.0001), nor what other photographs would show: the
    first and last blocks must differ by ``STEP``, and of one photograph nothing is said.
    """
    table = facts.columns("attention_distance")
    share, block = (
        table["value"] / table["uniform"],
        torch.tensor([site.block for _, _, site in facts.layout]),
    )
    distance = torch.stack([share[block == number].mean() for number in block.unique()])
    if len(distance) < LEAST or facts.images < 2:
        got = f"{counted(len(distance), 'block')} and {counted(facts.images, 'photograph')}"
        raise UserError(f"{got}, expected at least {LEAST} blocks and 2 photographs")
    place = torch.arange(len(distance), dtype=distance.dtype)
    rho = spearman(place, distance)
    low, high = spearman_interval(rho, len(distance))
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(place), generator=generator) for _ in range(SHUFFLES))
    shuffled = [abs(spearman(place, distance[order])) for order in orders]
    chance = torch.tensor(shuffled, dtype=torch.float64).quantile(0.95).item()
    third = max(1, len(distance) // 3)
    blocks = counted(third, "block")
    first, last = distance[:third].mean().item(), distance[-third:].mean().item()
    if math.isnan(rho) or abs(rho) <= chance or abs(last - first) < STEP:
        return None
    return Sentence(
        f"Heads look {'farther' if rho > 0 else 'less far'} the deeper they stand: in the first "
        f"{blocks} "
        f"{rounded(first, 3)} times as far as even attention, in the last {blocks} "
        f"{rounded(last, 3)} times: a rank "
        f"correlation with depth of {rounded(rho)} (95 % interval over blocks {rounded(low)} to "
        f"{rounded(high)}; "
        f"shuffled blocks stay within {rounded(chance)} in 95 % of cases)."
    )


@rule_for("which heads look at what is salient")
def salient(facts: Facts) -> Sentence:
    """Heads whose most attended patch is on the object more often than chance; held out for the best of them."""
    table = facts.columns("object_attention")
    statement = claim_above("look at what is salient", table, table["chance"], facts.images)
    chosen = torch.nonzero(~table["held_out"].isnan()).flatten().tolist()
    if not chosen:
        raise UserError("one half of the photographs is empty; give more of them")
    best, chance = chosen[0], table["chance"][chosen[0]]
    held = {
        name: table[f"held_out{end}"]
        for name, end in (("value", ""), ("low", "_low"), ("high", "_high"))
    }
    if not held["low"][best] > chance:
        return Sentence("", (), statement)
    heads = tuple(dict.fromkeys([best, *sure_heads(statement.sure, table["value"])]))
    return Sentence(
        f"{share_of(heads, facts.layout)} look at what is salient more often than chance. "
        f"{name_of_head(facts.layout, best).capitalize()}, the best on one half of the photographs, "
        "does so on the "
        f"other half for {value_in_words(held, best, SHARE, f'by chance {percent(chance)}')} of patches.",
        heads,
        statement,
    )


@rule_for("which heads spread their attention evenly")
def even(facts: Facts) -> Sentence:
    """Heads whose entropy is nearly the largest that there can be, on average over queries."""
    table = facts.columns("entropy")
    value, most, share = table["value"], table["uniform"], table["share"]
    shares = {end: share + (table[end] - value) / most for end in ENDS}

    def words(best: int, name: str) -> str:
        number = value_in_words(table, best, PLAIN, ("even attention", most[best]), digits=5)
        return (
            f"spread their attention nearly evenly over the whole image, most of all {name}: its "
            f"entropy is {number} nats."
        )

    return _on(
        facts,
        claim_above("spread their attention nearly evenly", shares, NEARLY, facts.images),
        share,
        words,
    )


@rule_for("what makes the network unlike an untrained one")
def untrained(facts: Facts) -> Sentence | None:
    """The heads farthest outside the range of the untrained network, and those inside of it by all measures.

    Distances are from the near end of a head's interval, as shares of the measure's scale. A head
    is inside of the range if its whole interval is: one that only reaches into it is not named.
    """
    far = torch.stack(
        [_beyond(facts, name) for name in SINGLE]
    )  # (measures, A), 0 within the untrained range
    most, which = far.max(0)
    heads = sure_heads(most > 0, most)
    if not heads:
        return None

    def words(head: int) -> str:
        name = list(SINGLE)[int(which[head])]
        ends = facts.columns(name, of_twin=True)["value"]
        against = f"untrained heads {rounded(ends.min(), 3)} to {rounded(ends.max(), 3)}"
        number = value_in_words(facts.columns(name), head, PLAIN, against, digits=3)
        return f"{name_of_head(facts.layout, head)}, {SINGLE[name].label} {number}"

    named = "; then ".join(words(head) for head in heads[:NAMED])
    same = torch.nonzero(torch.stack([_inside(facts, name) for name in SINGLE]).all(0))
    alike = same.flatten().tolist()
    names = ", ".join(name_of_head(facts.layout, head) for head in alike[:NAMED])
    rest = (
        f" {share_of(alike, facts.layout)} {'looks' if len(alike) == 1 else 'look'} as heads of an "
        f"untrained network do, in all {len(SINGLE)} measures of this comparison "
        f"({names}{' ...' if alike[NAMED:] else ''})."
        if alike
        else ""
    )
    return Sentence(
        "These heads differ most from those of an untrained network (which was shown "
        f"{counted(min(TWIN, facts.images), 'photograph')}): {named}.{rest}",
        heads[:NAMED],
    )


def _inside(facts: Facts, name: str) -> Tensor:
    """(A,) bool: the head's whole interval lies in the range of the untrained network's heads."""
    table, twin = facts.columns(name), facts.columns(name, of_twin=True)["value"]
    return (table["low"] >= twin.min()) & (table["high"] <= twin.max())


def _beyond(facts: Facts, name: str) -> Tensor:
    """(A,) distance of a head's interval from the range of the untrained network's heads, 0 if they meet.

    It is a share of even attention's value if the measure has a unit; other measures are shares.
    """
    table, twin = facts.columns(name), facts.columns(name, of_twin=True)["value"]
    far = (
        torch.maximum(table["low"] - twin.max(), twin.min() - table["high"])
        .clamp(min=0)
        .nan_to_num(0)
    )
    return far / table["uniform"] if SINGLE[name].unit else far


# ---- words


def claim_above(what: str, columns: Columns, threshold: Tensor | float, images: int) -> HeadClaim:
    """Claim that values are above ``threshold``; negate all arguments for below.

    An interval that touches the threshold is not beyond it.

    ``needed`` assumes that intervals shrink as one over the square root of the number of images.
    """
    value, low, high = (columns[name] for name in ("value", "low", "high"))
    beyond = torch.as_tensor(threshold, dtype=value.dtype).expand_as(value)
    open_ = (low <= beyond) & (high >= beyond)
    half, gap = (high - low) / 2, (value - beyond).abs()
    needed = (images * (half / gap) ** 2).ceil().clamp(min=images + 1)
    return HeadClaim(what, low > beyond, needed.where(open_, torch.nan))


def sure_heads(sure: Tensor, by: Tensor) -> tuple[int, ...]:
    """Return the flat indices of the heads that are sure, the largest value first."""
    (heads,) = torch.nonzero(sure, as_tuple=True)
    return tuple(heads[by[heads].argsort(descending=True, stable=True)].tolist())


def value_in_words(
    columns: Columns,
    at: int | tuple[int, int],
    unit: str,
    *against: str | tuple[str, Tensor],
    digits: int = 2,
) -> str:
    """Write e.g. ``97 % (95 % interval 95 % to 98 %; by chance 0.4 %)``.

    against: reference values, in words, or as words and a number, which gets the value's decimals.

    unit: ``SHARE`` (in per cent) or ``PLAIN``. digits: at least so many; more where the interval is
    narrower.
    """
    scale = 100 if unit == SHARE else 1
    numbers = [float(columns[name][at]) * scale for name in ENDS]
    digits = digits_apart(numbers[1], numbers[2], digits) or digits
    value, low, high = (number + unit for number in aligned(numbers, digits))
    beside = [
        one
        if isinstance(one, str)
        else f"{one[0]} {_decimals_of(value, scale * float(one[1]))}{unit}"
        for one in against
    ]
    return f"{value} ({'; '.join([f'95 % interval {low} to {high}', *beside])})"


def _decimals_of(written: str, number: float) -> str:
    """Write ``number`` with at least the decimals of a written one, and at least two digits."""
    before = math.floor(math.log10(abs(number))) + 1 if number else 1
    decimals = len(written.removesuffix(SHARE).partition(".")[2])
    return rounded(number, max(2, before + decimals))


def name_of_head(layout: HeadLayout, head: int) -> str:
    """Write e.g. ``block 3 head 5``, with the stage if there are several."""
    name = layout.name_of(head)
    return f"stage {list(layout)[head][2].stage} {name}" if layout.num_stages > 1 else name


def share_of(heads: Sequence[int], layout: HeadLayout) -> str:
    """Write e.g. ``5 of 72 heads``."""
    return f"{len(heads)} of {counted(layout.num_heads, 'head')}"


def _on(
    facts: Facts, statement: HeadClaim, by: Tensor, words: Callable[[int, str], str]
) -> Sentence:
    """Return the sentence on the heads that are sure, the largest first; without text if there is none.

    words: makes the text from the first head and its name.
    """
    heads = sure_heads(statement.sure, by)
    if not heads:
        return Sentence("", (), statement)
    text = words(heads[0], name_of_head(facts.layout, heads[0]))
    return Sentence(f"{share_of(heads, facts.layout)} {text}", heads, statement)


def _untold(claims: Sequence[HeadClaim], silent: Sequence[str], facts: Facts) -> list[Sentence]:
    """Return a sentence on heads whose interval holds the threshold, and on rules without facts."""
    parts = (
        ["what holds beyond one photograph: intervals need at least 2, better 12"]
        if facts.images < 2
        else []
    )
    for claim in claims if facts.images > 1 else ():
        if len(undecided := claim.needed[~claim.needed.isnan()]):
            half = "" if len(undecided) == 1 else " for half of them"
            needed = undecided.median().item()
            number = f"about {int(needed):,}" if needed <= 10_000 else "more than 10,000"
            may = f"{counted(len(undecided), 'more head')} may or may not {claim.what}"
            parts.append(f"{may} ({number} photographs would tell{half})")
    parts += silent
    photographs = counted(facts.images, "photograph")
    return [Sentence(f"Could not be told from {photographs}: {'; '.join(parts)}.")] if parts else []
