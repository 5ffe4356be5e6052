"""Compare two networks over batches of images, and test every head against what nothing looks like.

Rounding: a head, or a block, computes differently if its own error is more than ``FACTOR`` times
what A differs by from itself (Student's one-sided t of the logarithm, over images). Images: a head
has changed if it differs more from its former self than A's head does between two images (the
same of the paired difference), in what it writes or in where it looks. Either way heads are held at
a false discovery rate of ``RATE`` (Benjamini & Hochberg, 1995).

Shapes: N images, L blocks, A heads of network A, M MLPs, G groups of neurons, D head width.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhprobe.differences import nulls
from mhprobe.differences.alike import Itself
from mhprobe.differences.errors import GROUPS, Own, Pairs, Rest, own, rest
from mhprobe.differences.passes import Pass, bytes_of
from mhprobe.differences.sides import Pair, Side, Torch
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite, wide
from mhprobe.io.memory import give_back
from mhprobe.recording.record import in_raster_order
from mhprobe.stats.significance import PairedTest, benjamini_hochberg, paired

Null = Literal["rounding", "images"]
FACTOR = 4.0  # two bits: other kernels add up in another order
RATE = 0.05
LEAST = 4  # images: fewer leave a test no degrees of freedom
ROOM = 100_000_000  # bytes that the passes of one batch may take
MOST = 32  # images of a batch


class Batch(NamedTuple):
    """Images of both sides, and their labels. ours, theirs: (B, 3, height, width). labels: (B,) or None."""

    ours: Tensor
    theirs: Tensor
    labels: Tensor | None = None


Batches = Callable[[int], Iterator[Batch]]
"""Walks the images again, so many at a time."""


class Measured(NamedTuple):
    """All that was measured of two networks.

    own, rest: with N images. level: (L,), (A,) ... what nothing looks like, as a field of ``Own``
    without images; None of images. between: (N, L), (N, A), (N, A) of ``nulls.other_image`` or
    ``nulls.other_network``; None of rounding. similar: per site (H, H_B) CKA of a head of A and one
    of B. pixels: (N,) error of the normalised images. ours, theirs: (N, classes). labels: (N,) or None.
    """

    null: Null
    own: Own
    rest: Rest
    level: Own | None
    between: tuple[Tensor, Tensor, Tensor] | None
    similar: list[Tensor]
    pixels: Tensor
    ours: Tensor
    theirs: Tensor
    labels: Tensor | None
    eps: float
    itself: Mapping[str, Tensor] = MappingProxyType({})


def measured(
    a: Torch,
    b: Side,
    pairs: Pairs,
    batches: Batches,
    null: Null,
    dtype: torch.dtype,
    other: Torch | None = None,
    done: Callable[[int], object] = lambda images: None,
) -> Measured:
    """Run both networks on all images. dtype: of B. other: a network that says what nothing looks like.

    Raises UserError for fewer than ``LEAST`` images, outputs of other widths, and what ``passes.run``
    refuses.
    """
    level: Own | None = None
    size = fitting(a, b, batches)
    if null == "rounding" and other is None:
        level = level_of_rounding(a, pairs, batches, dtype, size)
    similar = [_Similar() for _ in pairs.heads]
    itself = Itself(pairs) if level is None else None
    between = null if other is None else other
    parts = list[_Part]()
    for batch in batches(size):
        parts.append(_of_batch(a, b, pairs, batch, between, (similar, itself)))
        give_back()
        done(len(batch.ours))
    owns, rests, betweens, pixels, ours, theirs, labels = zip(*parts, strict=True)
    count = sum(map(len, ours))
    if count < LEAST:
        raise UserError(
            f"diff: expected at least {LEAST} images, got {count}: fewer leave the tests nothing to "
            "vary over."
        )
    # what a cast to B's precision gives is in the level already
    eps = max(
        torch.finfo(kind).eps for kind in ({a.dtype} if level is not None else {a.dtype, dtype})
    )
    return Measured(
        "rounding" if level is not None else "images",
        Own(*map(torch.cat, zip(*owns, strict=True))),
        Rest(*map(torch.cat, zip(*rests, strict=True))),
        level,
        tuple(map(torch.cat, zip(*betweens, strict=True))) or None,  # type: ignore[arg-type]
        [one.value() for one in similar],
        torch.cat(pixels),
        torch.cat(ours),
        torch.cat(theirs),
        torch.cat(labels) if labels[0] is not None else None,
        eps,
        {} if itself is None else itself.columns(),
    )


class _Part(NamedTuple):
    """Numbers that are kept of a batch, as fields of ``Measured``; between: () of rounding."""

    own: Own
    rest: Rest
    between: tuple[Tensor, ...]
    pixels: Tensor
    ours: Tensor
    theirs: Tensor
    labels: Tensor | None


Likeness = tuple[Sequence["_Similar"], Itself | None]
"""By site what is summed for CKA, and of trainings what is summed for the likeness with itself."""


def _of_batch(
    a: Torch, b: Side, pairs: Pairs, batch: Batch, null: Null | Torch, likeness: Likeness
) -> _Part:
    """Run both networks on a batch, and keep no pass. null: or the network that says what nothing looks like."""
    first, natural = a.run(batch.ours), b.run(batch.theirs)
    _refuse_other_outputs(a, b, first, natural)
    fed = b.run(batch.theirs, fed=first)
    borrowed = a.run(batch.ours, fed=first, borrowed=units_of(pairs, fed), attention=False)
    between: tuple[Tensor, ...] = ()
    if isinstance(null, Torch):
        between = nulls.other_network(a, null, batch.ours, first)
    elif null == "images":
        between = nulls.other_image(a, pairs, first)
    _add_likeness(b, pairs, batch, (first, natural), likeness)
    return _Part(
        own(a, b, pairs, first, fed),
        rest(a, b, pairs, first, natural, fed, borrowed),
        between,
        _apart(batch),
        first.logits.float(),
        natural.logits.float(),
        batch.labels,
    )


def _add_likeness(
    b: Side, pairs: Pairs, batch: Batch, passes: tuple[Pass, Pass], likeness: Likeness
) -> None:
    """Add a batch to the sums that say how alike heads are."""
    similar, itself = likeness
    for add, (_, mine, theirs) in zip(similar, _outputs(b, pairs, passes), strict=True):
        if mine is not None:
            add(mine.flatten(0, 1), theirs.flatten(0, 1))
    if itself is not None:
        itself.add(batch.ours, _beside(b, pairs, passes))


def _outputs(b: Side, pairs: Pairs, passes: tuple[Pass, Pass]) -> Iterator[tuple[Pair, Any, Any]]:
    """Yield each pair of sites with the outputs of their heads, (B, T, H, D) of A and of B; None where B's is gone."""
    images = len(passes[0].logits)
    sites = [site for site in b.layout.sites if site.kind == "head"]
    for pair in pairs.heads:
        if pair.other is None:
            yield pair, None, None
            continue
        mine = _tokens(pair.site, passes[0].heads[pair.number], images)
        yield pair, mine, _tokens(sites[pair.other], passes[1].heads[pair.other], images)


def _beside(b: Side, pairs: Pairs, passes: tuple[Pass, Pass]) -> list[tuple[Tensor, Tensor]]:
    """Return the outputs, (B, T, D), of each head that both networks have."""
    return [
        (mine[:, :, at], theirs[:, :, place])
        for pair, mine, theirs in _outputs(b, pairs, passes)
        for at, place in zip(pair.mine, pair.theirs, strict=True)
    ]


def likeness(a: Torch, b: Torch, pairs: Pairs, batches: Batches) -> dict[str, Tensor]:
    """Return the columns of ``Itself``: how alike the outputs of each head of A are in B."""
    itself = Itself(pairs)
    for batch in batches(fitting(a, b, batches)):
        passes = a.run(batch.ours, attention=False), b.run(batch.theirs, attention=False)
        itself.add(batch.ours, _beside(b, pairs, passes))
        give_back()
    return itself.columns()


def level_of_rounding(
    a: Torch, pairs: Pairs, batches: Batches, dtype: torch.dtype, size: int
) -> Own:
    """Return what A differs by from itself, of the first ``nulls.IMAGES`` images, ``size`` at a time. dtype: of B."""
    few = torch.cat([batch.ours for batch in _few(batches(1), nulls.IMAGES)])
    half = dtype if dtype.itemsize < a.dtype.itemsize else None
    parts = [nulls.rounding(a, pairs, part, half) for part in few.split(size)]
    return Own(*(torch.stack(list(of)).amax(0) for of in zip(*parts, strict=True)))


def _few(batches: Iterable[Batch], most: int) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        if number == most:
            return
        yield batch


def fitting(a: Torch, b: Side, batches: Batches) -> int:
    """Number of images whose passes have room; at least two, where another image is the null."""
    image = next(batches(1)).ours
    one = bytes_of([a.run(image)]) * (3 + (b is not a))
    return max(2, min(MOST, ROOM // max(one, 1)))


def _apart(batch: Batch) -> Tensor:
    """(B,) relative error of the normalised images."""
    apart = (batch.theirs.float() - batch.ours.float()).flatten(1).norm(dim=1)
    return apart / batch.ours.float().flatten(1).norm(dim=1).clamp(min=1e-30)


def _refuse_other_outputs(a: Torch, b: Side, first: Pass, natural: Pass) -> None:
    if first.logits.shape != natural.logits.shape:
        raise UserError(
            f"diff: {a.name} gives {first.logits.shape[1]} numbers per image and {b.name} "
            f"{natural.logits.shape[1]}: expected the same classes, or the same features. Give both "
            "with their classifier, or both without."
        )


def units_of(pairs: Pairs, fed: Pass) -> dict[str, Tensor]:
    """Return what A's projections get in place of their own: B's heads and neurons, 0 for those that are gone."""
    lent = {}
    for of, rows in ((pairs.heads, fed.heads), (pairs.neurons, fed.neurons)):
        for pair in of:
            site, theirs = pair.site, None if pair.other is None else rows[pair.other]
            if theirs is None:
                continue  # A's own stand: what is gone shows as the projection's
            if len(pair.theirs) == site.num_heads and pair.mine == pair.theirs:
                lent[site.name] = theirs
                continue
            dense = theirs.new_zeros(*theirs.shape[:-1], site.num_heads, site.head_dim)
            parts = theirs.unflatten(-1, (-1, site.head_dim))
            dense[..., pair.mine, :] = parts[..., pair.theirs, :]
            lent[site.name] = dense.flatten(-2)
    return lent


def _tokens(site: HeadSite, rows: Tensor, images: int) -> Tensor:
    """(B, T, H, D) of all tokens of all images."""
    return wide(in_raster_order(site, rows, images))


class _Similar:
    """Linear CKA of every head of A and every head of B at one site, from sums over tokens."""

    def __init__(self) -> None:
        self.count, self.sums = 0, list[Tensor]()

    def __call__(self, ours: Tensor, theirs: Tensor) -> None:
        x, y = ours.flatten(1), theirs.flatten(1)
        parts = [
            torch.einsum("nhd,nhe->hde", ours, ours),
            torch.einsum("nhd,nhe->hde", theirs, theirs),
            torch.einsum("nhd,nge->hgde", ours, theirs),
            x.sum(0).unflatten(0, ours.shape[1:]),
            y.sum(0).unflatten(0, theirs.shape[1:]),
        ]
        self.count += len(ours)
        wider = [part.double() for part in parts]
        self.sums = [s + p for s, p in zip(self.sums, wider, strict=True)] if self.sums else wider

    def value(self) -> Tensor:
        """(H, H_B) CKA; empty where B has no head left."""
        if not self.sums:
            return torch.empty(0, 0)
        xx, yy, xy, x, y = self.sums
        xx = xx - torch.einsum("hd,he->hde", x, x) / self.count
        yy = yy - torch.einsum("hd,he->hde", y, y) / self.count
        xy = xy - torch.einsum("hd,ge->hgde", x, y) / self.count
        own_x, own_y = (part.square().sum((1, 2)).sqrt() for part in (xx, yy))
        return xy.square().sum((2, 3)) / (own_x[:, None] * own_y).clamp(min=1e-300)


class Verdict(NamedTuple):
    """Heads, blocks and steps that differ by more than nothing.

    p, q: (A,) of heads, raw and adjusted. flagged: (A,) bool. blocks: (L,) bool. embedding, last,
    pixels: bool. first: number of the first block that computes differently, or None. outside:
    what leaves a tolerance that was given, in words.
    """

    p: Tensor
    q: Tensor
    flagged: Tensor
    blocks: Tensor
    between: Tensor
    embedding: bool
    last: bool
    pixels: bool
    first: int | None


def judged(found: Measured, tolerance: float | None = None) -> Verdict:
    """Test heads, blocks, embedding and the part behind the last block.

    tolerance: of a mean error of a block of its own, in place of what rounding allows, for the
    first block.
    """
    if found.null == "rounding":
        assert found.level is not None
        p = _p_rounding(found.own.heads, found.level.heads, found.eps)
        seen = _p_looks(found)
        p = (2 * torch.fmin(p, seen)).clamp(max=1)
        blocks = _p_rounding(found.own.blocks, found.level.blocks, found.eps) < RATE
        arriving = _p_rounding(found.own.arriving, found.level.arriving, found.eps) < RATE
        last = _p_rounding(found.own.last[:, None], found.level.last[None], found.eps) < RATE
    else:
        assert found.between is not None
        of_blocks, of_heads, of_attention = found.between
        p_output = _p_paired(found.rest.heads, of_heads)
        p_seen = _p_paired(found.rest.attention, of_attention)
        p = (2 * torch.fmin(p_output, p_seen)).clamp(max=1)
        blocks = _p_paired(found.own.blocks, of_blocks) < RATE
        arriving = found.own.arriving.mean(0) > FACTOR * found.eps
        last = found.own.last.mean(0, keepdim=True) > FACTOR * found.eps
    q = benjamini_hochberg(p)
    if tolerance is not None:
        blocks = ~(found.own.blocks.mean(0) <= tolerance)
    numbers = blocks.nonzero().flatten().tolist()
    return Verdict(
        p,
        q,
        q < RATE,
        blocks,
        arriving,
        bool(arriving[0]),
        bool(last[0]),
        bool(found.pixels.mean() > 1e-3),
        numbers[0] if numbers else None,
    )


def _p_rounding(error_NA: Tensor, level_A: Tensor, eps: float) -> Tensor:
    """(A,) one-sided p that the errors are ``FACTOR`` times what nothing gives, or less. NaN of units that are gone."""
    limit_A = FACTOR * torch.fmax(level_A, torch.full_like(level_A, eps))
    # a level that is infinite allows nothing to be told
    log_NA = (error_NA.clamp(1e-30, 1e30) / limit_A).log()
    return _p_above(log_NA)


def _p_looks(found: Measured) -> Tensor:
    """(A,) p that attention differs by no more than rounding. It grows with the square of the difference."""
    assert found.level is not None
    level = torch.fmax(found.level.attention, torch.full_like(found.level.attention, found.eps**2))
    log_NA = (found.own.attention.clamp(min=1e-40) / (FACTOR**2 * level)).log()
    return _p_above(log_NA)


def _p_paired(error_NA: Tensor, between_NA: Tensor) -> Tensor:
    """(A,) one-sided p that errors are no larger than those between images, over pairs of both."""
    return _p_above(error_NA.clamp(max=1e30) - between_NA)


def _p_above(values_NA: Tensor) -> Tensor:
    """(A,) one-sided p of Student's t that the mean over images is 0 or less."""
    from scipy.special import stdtr

    count = len(values_NA)
    mean, spread = values_NA.mean(0), values_NA.std(0).clamp(min=1e-9)
    t = (mean / (spread / math.sqrt(count))).clamp(-1e8, 1e8)
    return torch.from_numpy(stdtr(count - 1, -t.double().cpu().numpy())).clamp(min=1e-300)


class Outputs(NamedTuple):
    """Logits of two networks. agreement: share of images of the same class; None of features.

    error: mean relative error of the logits. accuracy: before and after, and their paired
    difference; None without labels.
    """

    error: float
    agreement: float | None
    before: float | None = None
    after: float | None = None
    paired: PairedTest | None = None


class Ends(NamedTuple):
    """Answers of two networks: ours and theirs (N, classes), of logits or of features.

    errors: (N,) relative to ours. classes: True if they are logits.
    """

    ours: Tensor
    theirs: Tensor
    errors: Tensor
    classes: bool


def ends_of(found: Measured, classes: bool) -> Ends:
    """Return the answers of both networks. classes: whether they are logits."""
    return Ends(found.ours, found.theirs, found.rest.logits, classes)


def outputs(ends: Ends, labels: Tensor | None) -> Outputs:
    """Compare the answers of two networks. labels: (N,) or None."""
    error = float(ends.errors.mean())
    if not ends.classes:
        return Outputs(error, None)
    guesses = [of.argmax(1) for of in (ends.ours, ends.theirs)]
    agreement = float((guesses[0] == guesses[1]).double().mean())
    if labels is None:
        return Outputs(error, agreement)
    right = [guess == labels for guess in guesses]
    before, after = (float(of.double().mean()) for of in right)
    return Outputs(error, agreement, before, after, paired(*right))


class Explained(NamedTuple):
    """Effect of one block of B, or of one part of it, on A's logits when all else is A's.

    error: mean relative error of the logits. agreement, accuracy: shares; None without classes or
    labels.
    """

    error: float
    agreement: float | None
    accuracy: float | None


def explained(
    a: Torch, b: Side, pairs: Pairs, batches: Batches, number: int, classes: bool
) -> dict[str, Explained]:
    """Give A what block ``number`` of B does differently, whole and in its parts, and look at A's logits.

    Returns by "block" and by the parts of ``errors.PARTS``.
    """
    gathered: dict[str, list[tuple[Tensor, Tensor, Tensor | None]]] = {}
    for batch in batches(fitting(a, b, batches)):
        before, deltas = _given(a, b, pairs, batch, number)
        for name, delta in deltas.items():
            logits = _with(a, batch.ours, number, delta)
            gathered.setdefault(name, []).append((before, logits, batch.labels))
        give_back()
    return {name: _effect(parts, classes) for name, parts in gathered.items()}


def _given(
    a: Torch, b: Side, pairs: Pairs, batch: Batch, number: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """(B, classes) A's logits, and what a block of B does differently. No pass is kept."""
    first = a.run(batch.ours, attention=False)
    fed = b.run(batch.theirs, fed=first)
    lent = a.run(batch.ours, fed=first, borrowed=units_of(pairs, fed), attention=False)
    mine, theirs, half = (one.streams[number] for one in (first, fed, lent))
    return first.logits, _deltas(mine, theirs, half)


def _deltas(
    mine: Sequence[Tensor], theirs: Sequence[Tensor], lent: Sequence[Tensor]
) -> dict[str, Tensor]:
    before, middle, after = zip(mine, lent, theirs, strict=True)
    mlps = [wide(end) - wide(half) for end, half in zip(after, middle, strict=True)]
    middles = [wide(part) for part in middle]
    return {
        "block": (wide(after[2]) - wide(before[2])) - (wide(after[0]) - wide(before[0])),
        "heads": middles[1] - middles[0],
        "projection": middles[2] - middles[1],
        "neurons": mlps[1] - mlps[0],
        "mlp output": mlps[2] - mlps[1],
    }


def _with(a: Torch, images: Tensor, number: int, delta: Tensor) -> Tensor:
    """(B, classes) logits of A with ``delta`` (B, T, C) added behind one of its blocks."""
    block = a.backbone.get_submodule(a.layout.blocks[number].name)

    def add(_module: torch.nn.Module, _args: object, out: object) -> object:
        whole = out[0] if isinstance(out, tuple) else out
        assert isinstance(whole, Tensor)
        moved = whole + delta.to(whole).reshape(whole.shape)
        return (moved, *out[1:]) if isinstance(out, tuple) else moved

    handle = block.register_forward_hook(add)
    try:
        return a.logits(images)
    finally:
        handle.remove()


def _effect(parts: list[tuple[Tensor, Tensor, Tensor | None]], classes: bool) -> Explained:
    before = torch.cat([part[0] for part in parts]).double()
    after = torch.cat([part[1] for part in parts]).double()
    error = (after - before).norm(dim=1) / before.norm(dim=1).clamp(min=1e-30)
    labels = None if parts[0][2] is None else torch.cat([part[2] for part in parts])  # type: ignore[misc]
    agreement = accuracy = None
    if classes:
        agreement = float((before.argmax(1) == after.argmax(1)).double().mean())
    if classes and labels is not None:
        accuracy = float((after.argmax(1) == labels).double().mean())
    return Explained(float(error.nan_to_num(nan=math.inf).mean()), agreement, accuracy)


def neuron_groups(pairs: Pairs) -> list[tuple[int, int]]:
    """(block, group) of each column of ``Own.neurons``."""
    return [(pair.site.block, group) for pair in pairs.neurons for group in range(GROUPS)]
