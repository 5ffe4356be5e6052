"""Plants: heads of known function, a class each, and a model with every plant in it."""

import abc
import re
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from mhprobe.backbones.parts.opened import Opened
from mhprobe.errors import UserError
from mhprobe.heads import HeadSite
from mhprobe.lab.headbench.canvas import (
    CLASSES,
    EVIDENCE,
    MARKS,
    NOISES,
    SCRATCH,
    TEXTURES,
    Canvas,
    draw_images,
)

TURNED = (
    "query",
    "query_bias",
    "key",
    "key_bias",
    "value",
    "value_bias",
    "output",
)  # parts that a rotation turns
# signs expected of a head that writes nothing, and of two heads that do the same
SILENT: Mapping[str, int] = dict.fromkeys(
    (
        "write_norm",
        "ablation_delta",
        "gate_importance",
        "fisher",
        "lrp_relevance",
        "logit_attribution.size",
    ),
    -1,
)
SAME: Mapping[str, int] = {
    **dict.fromkeys(("svcca", "cca", "pwcca", "cka", "procrustes", "weight_similarity"), 1),
    "js_distance": -1,
}

Kind = TypeVar("Kind")


class Made(abc.ABC):
    """Base of plants and grafts, named by their class: StandIn is stand_in.

    question: a user's. heads: their number.

    signs: by measure or column of one, +1 for expected large values, -1 for small ones.
    """

    question: ClassVar[str]
    heads: ClassVar[int] = 1
    signs: ClassVar[Mapping[str, int]] = {}


class Plant(Made):
    """A head, or a pair of heads, written by hand. signs: +1 for measures that are not named.

    like: plants with the same property, left out of the comparison. first: placed first, because
    few sites fit.
    """

    like: ClassVar[Sequence[str]] = ()
    first: ClassVar[bool] = False

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        return True

    @abc.abstractmethod
    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        """Write the plant into these heads of a site; all earlier blocks are finished."""

    @abc.abstractmethod
    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Return True if an intervention on the finished model shows the plant in these heads."""


def by_name(base: type[Kind]) -> dict[str, Kind]:
    """Make one of each class below ``base`` in its module, by its name in small letters, in the order of names."""
    items = vars(sys.modules[base.__module__]).values()
    kinds = [kind for kind in items if isinstance(kind, type) and issubclass(kind, base)]
    named = {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind
        for kind in kinds
        if kind is not base
    }
    return {name: named[name]() for name in sorted(named)}


def filler(canvas: Canvas, site: int, head: int) -> None:
    """Write a head without a known function: random features are compared, carried and written."""
    width, random, some = canvas.site(site).head_dim, canvas.random, (*NOISES, *TEXTURES)
    sharp = canvas.uniform(0.2, 2.0)
    parts = dict(
        query=sharp * canvas.mixed(site, some, width),
        key=sharp * canvas.mixed(site, some, width),
        value=canvas.mixed(site, some, width),
        query_bias=0.3 * torch.randn(width, generator=random),
        key_bias=torch.zeros(width),
        value_bias=0.1 * torch.randn(width, generator=random),
        output=canvas.mixed(site, (*NOISES, *SCRATCH), width)
        + 0.15 * canvas.mixed(site, EVIDENCE, width),
    )
    if canvas.family == "swin":
        count = len(canvas.parts(site, head)["offsets"])
        parts["offsets"] = canvas.uniform(0.0, 1.0) * torch.randn(count, generator=random)
    canvas.write(site, head, **parts)
    canvas.scale_write(site, head, 10 ** canvas.uniform(-1.7, -0.7))


def moved_by(model: Opened, site: int, head: int, before: Tensor, directions: Tensor) -> Tensor:
    """(T, T) movement of the head's write per token by noise on each token of ``before`` (B, T, C); rows sum to 1."""
    tokens, generator = before.shape[1], torch.Generator().manual_seed(5)
    nudge = torch.randn(len(before), len(directions), generator=generator) @ directions
    nudge = 0.02 * before.norm(dim=-1).mean() * torch.nn.functional.normalize(nudge, dim=-1)
    still = model.write_of(site, head, before)
    nudged = (
        before + torch.eye(tokens)[:, None, :, None] * nudge[:, None]
    )  # (T, B, T, C): a token in each copy
    written = model.write_of(site, head, nudged.flatten(0, 1)).unflatten(0, (tokens, -1))
    moved = (written - still).norm(dim=-1).mean(1).T
    return moved / moved.sum(-1, keepdim=True).clamp(min=1e-12)


def share_at(at: HeadSite, share: Tensor, down: int, across: int) -> float:
    """The mean of (T, T) ``share`` at the token of an offset, over queries that can reach it."""
    high, wide = at.token_grid
    places = at.places()
    pairs = at.support()
    can = torch.zeros(share.shape, dtype=torch.bool)
    window, seeing, seen = pairs.nonzero(as_tuple=True)
    can[places[window, seeing], places[window, seen]] = True
    cells = [
        (y, x)
        for y in range(high)
        for x in range(wide)
        if 0 <= y + down < high and 0 <= x + across < wide
    ]
    query = at.prefix_tokens + torch.tensor([y * wide + x for y, x in cells])
    key = query + down * wide + across
    return float(share[query, key][can[query, key]].double().mean())


class Dead(Plant):
    """A head that writes nothing: its columns of W_O are zero."""

    question = "is it dead?"
    signs = SILENT

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        filler(canvas, site, heads[0])
        canvas.write(
            site, heads[0], output=torch.zeros_like(canvas.parts(site, heads[0])["output"])
        )

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Change its values: no logit moves."""
        before = canvas.logits(canvas.seen.images)
        parts = canvas.parts(site, heads[0])
        canvas.write(
            site, heads[0], value=parts["value"].flip(0) * 3, value_bias=parts["value_bias"] + 1
        )
        after = canvas.logits(canvas.seen.images)
        canvas.write(site, heads[0], **parts)
        return bool((before - after).abs().max() < 1e-6)


class Duplicate(Plant):
    """Two heads with the same weights."""

    question = "are the two the same?"
    heads = 2
    like = ("rotated",)
    signs = SAME

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        one, other = heads
        filler(canvas, site, one)
        canvas.write(site, other, **canvas.parts(site, one))

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Compare the two writes on images that the copy was not made on."""
        one, other = (canvas.writes(site, head) for head in heads)
        return bool((one - other).abs().max() < 1e-4 * one.abs().max()) and bool(
            one.abs().max() > 0
        )


class Rotated(Duplicate):
    """Two heads that are the same up to a rotation of queries with keys, and of values with W_O."""

    question = "are the two the same, up to a rotation?"
    like = ("duplicate",)

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        parts = canvas.parts(site, heads[1])
        width = canvas.site(site).head_dim
        look, carry = (
            torch.linalg.qr(torch.randn(width, width, generator=canvas.random)).Q for _ in range(2)
        )
        turned = {
            name: (look if name.startswith(("query", "key")) else carry) @ parts[name]
            for name in TURNED
        }
        canvas.write(site, heads[1], **{**parts, **turned})


class Itself(Plant):
    """A head whose tokens attend to themselves.

    offset: (down, across) of the token attended to, by family.
    """

    question = "does it look at itself?"
    signs: ClassVar = {
        "token_kinds.self": 1,
        "attention_distance": -1,
        "attention_range": -1,
        "entropy": -1,
    }
    offset: ClassVar = {"vit": (0, 0), "swin": (0, 0)}

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_at_offset(site, heads[0], *self.offset[canvas.family], 9.0)
        width = canvas.site(site).head_dim
        value = canvas.mixed(site, (*NOISES, *TEXTURES), width)
        output = canvas.mixed(site, NOISES, width)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width), output=output)
        canvas.scale_write(site, heads[0], canvas.uniform(0.05, 0.15))

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Add noise to each token: that at the offset moves the write most."""
        stream = canvas.stream(site)[0][:2]
        directions = canvas.rows(site, (*NOISES, *TEXTURES))
        moved = moved_by(canvas, site, heads[0], stream, directions)
        return share_at(canvas.site(site), moved, *self.offset[canvas.family]) > 0.7


class Previous(Itself):
    """A head whose tokens attend to their left neighbour."""

    question = "does it look at the previous patch?"
    signs: ClassVar = {
        "token_kinds.neighbours": 1,
        "attention_distance": -1,
        "position": 1,
        "entropy": -1,
    }
    like = ("itself", "positional")  # of a fixed offset, too
    offset: ClassVar = {"vit": (0, -1), "swin": (0, -1)}


class Positional(Itself):
    """A head whose tokens attend to a fixed offset that is no neighbour."""

    question = "does it look at a fixed offset?"
    signs: ClassVar = {"position": 1, "entropy": -1, "confidence": 1}
    like = ("itself", "previous")
    offset: ClassVar = {"vit": (2, 1), "swin": (1, 2)}


DRAWN: dict[str, int] = {  # signs of a head whose attention goes to one token
    "token_kinds.cls": 1,
    "sinks": 1,
    "sinks.sink": 1,
    "no_op.attention": 1,
    "confidence.with_prefix": 1,
    "entropy": -1,
}


class SinkNoOp(Plant):
    """A head that attends to the class token, or a Swin window's landmark, and writes almost nothing of its value."""

    question = "does it rest on a sink?"
    signs: ClassVar = {**DRAWN, "no_op": -1, "sinks.write": -1, "write_norm": -1}
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        # merged or shifted windows have more than one landmark, or none
        return site.windows is None or (site.stage == 0 and not any(site.windows.shift))

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], canvas.sink, 9.0)
        value = canvas.mixed(site, NOISES, width)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width))
        canvas.write(site, heads[0], output=canvas.mixed(site, NOISES, width))
        # a learned no-op has small values at the sink: remove the sink's own direction
        tokens = canvas.normalised(site)[self._sinks(canvas, site)]
        mean = torch.nn.functional.normalize(tokens.mean(0), dim=0)
        values = canvas.parts(site, heads[0])["value"]
        canvas.write(site, heads[0], value=values - values @ mean[:, None] * mean[None])
        canvas.scale_write(site, heads[0], 0.01)

    def drawn(self, canvas: Canvas, site: int, heads: Sequence[int]) -> float:
        """Share of the attention that goes to sink tokens, read off the write of a head that carries them alone."""
        parts = canvas.parts(site, heads[0])
        row = canvas.rows(site, canvas.sink)
        canvas.write(site, heads[0], value=row, value_bias=torch.zeros(1), output=row)
        written = canvas.writes(site, heads[0]) @ row[0]
        canvas.write(site, heads[0], **parts)
        return float(
            (written / (canvas.normalised(site) @ row[0])[self._sinks(canvas, site)].mean()).mean()
        )

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Mark the sink's values: they arrive. Remove the head: logits hardly move."""
        moved = (
            (
                canvas.logits(canvas.seen.images)
                - canvas.logits(canvas.seen.images, [(site, heads[0])])
            )
            .abs()
            .mean()
        )
        return self.drawn(canvas, site, heads) > 0.7 and bool(moved < 0.1)

    def _sinks(self, canvas: Canvas, site: int) -> Tensor:
        amount = canvas.normalised(site) @ canvas.rows(site, canvas.sink)[0]
        return amount > amount.amax() / 2


class SinkBroadcast(SinkNoOp):
    """A head that writes the content of one token, to which all queries attend, to all tokens."""

    question = "does it hand out what a sink knows?"
    signs: ClassVar = {**DRAWN, "write_norm": 1, "sinks.common": 1, "sinks.role": 1}

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], canvas.sink, 9.0)
        value = torch.cat([canvas.rows(site, canvas.sink), canvas.mixed(site, NOISES, width - 1)])
        output = torch.cat(
            [canvas.mixed(site, SCRATCH, 1), 0.3 * canvas.mixed(site, NOISES, width - 1)]
        )
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width), output=output)
        canvas.scale_write(site, heads[0], 0.15)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Mark the sink's values: they arrive, nearly the same at all tokens."""
        writes = canvas.writes(site, heads[0]).flatten(0, 1)
        common = writes.mean(0).norm() / writes.norm(dim=-1).mean()
        return self.drawn(canvas, site, heads) > 0.7 and bool(common > 0.5)


class Object(Plant):
    """A head that attends to the object and writes evidence for its class."""

    question = "does it look at the object?"
    signs: ClassVar = {
        "object_attention": 1,
        "ablation_delta": 1,
        "logit_attribution": 1,
        "gate_importance": 1,
    }
    reads: ClassVar = TEXTURES
    follows: ClassVar = (
        "labels",
        "shown",
    )  # the classes it writes: a field of World, and the option of draw for it
    like: ClassVar[Sequence[str]] = ("against", "together")  # they look at it, too

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_for(site, heads[0], self.reads, 8.0)
        value = canvas.rows(site, self.reads)
        output = 0.5 * canvas.rows(site, EVIDENCE)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(1), output=output)
        canvas.scale_evidence(site, heads[0], 1.5)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Change the textures of objects, or what else it reads: the head's evidence follows."""
        before, argument = self.follows
        to = (getattr(canvas.seen, before) + 1) % CLASSES
        changed = draw_images(len(to), canvas.seed_of_seen, **{argument: to}).images
        classes = (canvas.logits(changed) - canvas.logits(changed, [(site, heads[0])])).argmax(1)
        return bool((classes == to).double().mean() > 0.7)


class Shortcut(Object):
    """A head that attends to the mark in the corner and writes evidence for its class."""

    question = "does it carry a shortcut?"
    signs: ClassVar = {
        "ablation_delta": 1,
        "logit_attribution": 1,
        "object_attention": -1,
        "token_kinds.border": 1,
    }
    reads: ClassVar = MARKS
    follows: ClassVar = ("marks", "marked")
    like: ClassVar[Sequence[str]] = ()
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        return site.stage == 0


class Against(Object):
    """A head that attends to the object and writes evidence against its class."""

    question = "does it hurt?"
    signs: ClassVar = {
        "ablation_delta": -1,
        "logit_attribution": -1,
        "logit_attribution.against": 1,
    }
    like: ClassVar[Sequence[str]] = ()

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        canvas.write(site, heads[0], output=-canvas.parts(site, heads[0])["output"])
        canvas.scale_evidence(site, heads[0], -0.7)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Remove the head: the loss falls."""
        return canvas.loss([(site, heads[0])]) < canvas.loss() - 0.02


class Together(Plant):
    """Two heads that write the same evidence: MLP units, one per class, need one of them and clip what comes on top."""

    question = "are the two needed only together?"
    heads = 2
    signs: ClassVar = {"interaction": 1, "ablation_delta": 1, "gate_importance": 1}
    first = True

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        value = canvas.rows(site, TEXTURES)
        output = canvas.rows(site, SCRATCH)
        for head in heads:
            canvas.look_for(site, head, TEXTURES, 8.0)
            canvas.write(site, head, value=value, value_bias=torch.zeros(1), output=output)
            canvas.scale_write(site, head, 0.25)
        self._clip(canvas, site, heads)

    @torch.no_grad()
    def _clip(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        """relu(s - a) - relu(s - b) for each class, a and b below what one head writes on the object's class."""
        reads, writes = canvas.mlp(site)
        rows = canvas.rows(site, SCRATCH)
        with_one = canvas.entering_mlp(site, without=heads[1:]) @ rows.T  # (B, T, K)
        right = with_one[torch.arange(len(with_one)), :, canvas.seen.labels]
        full = float(
            right[right > 0.4 * right.quantile(0.99)].quantile(0.2)
        )  # where one head finds the object
        low, high = 0.6 * full, 0.85 * full  # above twice what another class has
        units, steep = slice(0, 2 * CLASSES), 12 / full
        reads.weight[units] = torch.cat([rows, rows]) * steep
        reads.bias[units] = -steep * torch.tensor([low] * CLASSES + [high] * CLASSES)
        evidence = canvas.rows(site, EVIDENCE)
        writes.weight[:, units] = torch.cat([evidence, -evidence]).T
        for _ in range(3):
            moved = float(canvas.margin() - canvas.margin(without=[(site, head) for head in heads]))
            writes.weight[:, units] *= min(max(1.5 / moved, 0.1), 10.0)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Remove one, then both: only both cost much."""
        alone = [canvas.loss([(site, head)]) - canvas.loss() for head in heads]
        both = canvas.loss([(site, head) for head in heads]) - canvas.loss()
        return both > 0.05 and max(map(abs, alone)) < both / 3


class Planted(NamedTuple):
    """A planted head or group.

    heads: flat indices. verified: True if an intervention shows it here alone.
    """

    name: str
    plant: Plant
    heads: tuple[int, ...]
    verified: bool


def all_plants() -> dict[str, Plant]:
    return by_name(Plant)  # type: ignore[type-abstract]


def grow(family: str, seed: int) -> tuple[Canvas, list[Planted]]:
    """Write a model with every plant at a random place, among fillers.

    UserError where a plant has no room.
    """
    canvas = Canvas(family, seed)
    plants = all_plants()
    places, free = _drawn_places(canvas, plants)
    for site, fillers in free.items():
        for head in fillers:
            filler(canvas, site, head)
        for name, (place, heads) in places.items():
            if place == site:
                plants[name].plant(canvas, site, heads)
        _fill_mlp(canvas, site)
    planted = [
        Planted(
            name,
            plants[name],
            tuple(canvas.layout.flat(site, head) for head in heads),
            _is_shown(plants[name], canvas, site, heads, free[site]),
        )
        for name, (site, heads) in places.items()
    ]
    return canvas, planted


def _is_shown(
    plant: Plant, canvas: Canvas, site: int, heads: Sequence[int], free: Sequence[int]
) -> bool:
    """Return True if an intervention shows the plant in its heads, and not in as many others of the layer."""
    # where too few are free, one with the plant
    others = tuple([*free, *heads][: len(heads)])
    return plant.verified(canvas, site, heads) and not plant.verified(canvas, site, others)


def _drawn_places(
    canvas: Canvas, plants: Mapping[str, Plant]
) -> tuple[dict[str, tuple[int, tuple[int, ...]]], dict[int, list[int]]]:
    """Draw a site for each plant, and its heads there; also return the heads of each site that are left.

    UserError where a plant has no room.
    """
    free = {site: list(range(about.num_heads)) for site, about in enumerate(canvas.layout.sites)}
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name, plant in sorted(plants.items(), key=lambda item: not item[1].first):
        # a head is left to compare with
        fit = [
            site
            for site in free
            if plant.fits(canvas, canvas.site(site)) and len(free[site]) > plant.heads
        ]
        if not fit:
            raise UserError(f"headbench: no layer of the {canvas.family} has room for {name}.")
        site = fit[int(torch.randint(len(fit), (), generator=canvas.random))]
        chosen = torch.randperm(len(free[site]), generator=canvas.random)[: plant.heads]
        heads = tuple(free[site][i] for i in chosen.tolist())
        free[site] = [head for head in free[site] if head not in heads]
        places[name] = (site, heads)
    return places, free


@torch.no_grad()
def _fill_mlp(canvas: Canvas, site: int) -> None:
    reads, writes = canvas.mlp(site)
    rows = canvas.rows(site, NOISES)
    (free,) = (reads.weight.abs().sum(1) == 0).nonzero(as_tuple=True)
    read, written = (
        torch.randn(len(free), len(rows), generator=canvas.random) @ rows for _ in range(2)
    )
    reads.weight[free], writes.weight[:, free] = read / len(rows) ** 0.5, 0.05 * written.T
