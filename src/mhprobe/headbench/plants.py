"""Plants: heads of known function, a class each, and a model with every plant in it."""

import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch

from mhprobe.errors import UserError
from mhprobe.headbench.canvas import CLASSES, EVIDENCE, MARKS, NOISES, SCRATCH, TEXTURES, Canvas, World, draw
from mhprobe.headbench.plant import SAME, SILENT, Plant, by_name, carry, filler, moved_by, share_at
from mhprobe.heads import HeadSite


class Dead(Plant):
    """A head that looks and computes, and writes nothing: its columns of W_O are zero."""

    question = "is it dead?"
    signs = SILENT

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        filler(canvas, site, heads[0])
        canvas.write(site, heads[0], output=torch.zeros_like(canvas.parts(site, heads[0])["output"]))

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other values, and no logit moves."""
        before, parts = canvas.logits(canvas.seen.images), canvas.parts(site, heads[0])
        canvas.write(site, heads[0], value=parts["value"].flip(0) * 3, value_bias=parts["value_bias"] + 1)
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
        """The same write, on images that it was not made on."""
        one, other = (canvas.writes(site, head) for head in heads)
        return bool((one - other).abs().max() < 1e-4 * one.abs().max()) and bool(one.abs().max() > 0)


class Rotated(Duplicate):
    """Two heads that do the same in other coordinates: queries and keys are rotated alike, values and W_O too."""

    question = "are the two the same, up to a rotation?"
    like = ("duplicate",)

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        parts, width = canvas.parts(site, heads[1]), canvas.site(site).head_dim
        look, carry = (torch.linalg.qr(torch.randn(width, width, generator=canvas.random)).Q for _ in range(2))
        for name in ("query", "key"):
            parts |= {name: look @ parts[name], f"{name}_bias": look @ parts[f"{name}_bias"]}
        parts |= {"value": carry @ parts["value"], "value_bias": carry @ parts["value_bias"]}
        canvas.write(site, heads[1], **{**parts, "output": carry @ parts["output"]})


class Itself(Plant):
    """A head whose tokens look at themselves."""

    question = "does it look at itself?"
    signs: ClassVar = {"token_kinds.self": 1, "attention_distance": -1, "attention_range": -1, "entropy": -1}

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        """(down, across), in tokens."""
        return 0, 0

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_at_offset(site, heads[0], *self.offset(canvas, site), 9.0)
        carry(canvas, site, heads[0])

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Noise on that token, and on no other, moves the write."""
        stream, directions = canvas.stream(site)[0][:2], canvas.rows(site, (*NOISES, *TEXTURES))
        moved = moved_by(canvas, site, heads[0], stream, directions)
        return share_at(canvas.site(site), moved, *self.offset(canvas, site)) > 0.7


class Previous(Itself):
    """A head whose tokens look at their left neighbour."""

    question = "does it look at the previous patch?"
    signs: ClassVar = {"token_kinds.neighbours": 1, "attention_distance": -1, "position": 1, "entropy": -1}
    like = ("itself", "positional")  # of a fixed offset, too

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        return 0, -1


class Positional(Itself):
    """A head whose tokens look at a fixed place relative to them, some way off."""

    question = "does it look at a fixed offset?"
    signs: ClassVar = {"position": 1, "entropy": -1, "confidence": 1}
    like = ("itself", "previous")

    def offset(self, canvas: Canvas, site: int) -> tuple[int, int]:
        return (2, 1) if canvas.family == "vit" else (1, 2)


DRAWN: dict[str, int] = {  # what tells that all attention goes to one token, whatever the head makes of it
    "token_kinds.cls": 1,
    "sinks": 1,
    "sinks.sink": 1,
    "no_op.attention": 1,
    "confidence.with_prefix": 1,
    "entropy": -1,
}


class SinkNoOp(Plant):
    """A head that does nothing most of the time: its queries look at one token, whose value it does not pass on.

    A ViT's rests on the class token, a Swin's on the landmark of each window.
    """

    question = "does it rest on a sink?"
    signs: ClassVar = {**DRAWN, "no_op": -1, "sinks.write": -1, "write_norm": -1}
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        # merged or shifted windows have more than one landmark, or none
        return site.windows is None or (site.stage == 0 and not any(site.windows.shift))

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], self.sink(canvas), 9.0)
        value = canvas.mixed(site, NOISES, width)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width))
        canvas.write(site, heads[0], output=canvas.mixed(site, NOISES, width))
        # what the sink itself carries is taken out, as a learned no-op has small values there
        tokens = canvas.normalised(site)[self._sinks(canvas, site)]
        mean = torch.nn.functional.normalize(tokens.mean(0), dim=0)
        values = canvas.parts(site, heads[0])["value"]
        canvas.write(site, heads[0], value=values - values @ mean[:, None] * mean[None])
        canvas.scale_write(site, heads[0], 0.01)

    def sink(self, canvas: Canvas) -> tuple[str, ...]:
        return ("class_token",) if canvas.family == "vit" else ("landmark",)

    def drawn(self, canvas: Canvas, site: int, heads: Sequence[int]) -> float:
        """Share of the attention, by weights written anew: the share of the write that sink tokens decide."""
        tokens = self._sinks(canvas, site)
        parts = canvas.parts(site, heads[0])
        row = canvas.rows(site, self.sink(canvas))
        # carry nothing but whether a token is the sink: the write is then the attention that goes there
        canvas.write(site, heads[0], value=row, value_bias=torch.zeros(1), output=row)
        written = canvas.writes(site, heads[0]) @ row[0]
        canvas.write(site, heads[0], **parts)
        most = (canvas.normalised(site) @ row[0])[tokens].mean()
        return float((written / most).mean())

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Values that say where they come from arrive from the sink, and without the head nothing much changes."""
        moved = (canvas.logits(canvas.seen.images) - canvas.logits(canvas.seen.images, [(site, heads[0])])).abs().mean()
        return self.drawn(canvas, site, heads) > 0.7 and bool(moved < 0.1)

    def _sinks(self, canvas: Canvas, site: int) -> torch.Tensor:
        amount = canvas.normalised(site) @ canvas.rows(site, self.sink(canvas))[0]
        return amount > amount.amax() / 2


class SinkBroadcast(SinkNoOp):
    """A head that broadcasts one token: all queries look at that token, and its content is written to all."""

    question = "does it hand out what a sink knows?"
    signs: ClassVar = {**DRAWN, "write_norm": 1, "sinks.common": 1, "sinks.role": 1}

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        width = canvas.site(site).head_dim
        canvas.look_for(site, heads[0], self.sink(canvas), 9.0)
        value = torch.cat([canvas.rows(site, self.sink(canvas)), canvas.mixed(site, NOISES, width - 1)])
        output = torch.cat([canvas.mixed(site, SCRATCH, 1), 0.3 * canvas.mixed(site, NOISES, width - 1)])
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(width), output=output)
        canvas.scale_write(site, heads[0], 0.15)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Values that say where they come from arrive from the sink, and all tokens are given nearly the same."""
        writes = canvas.writes(site, heads[0]).flatten(0, 1)
        common = writes.mean(0).norm() / writes.norm(dim=-1).mean()
        return self.drawn(canvas, site, heads) > 0.7 and bool(common > 0.5)


class Object(Plant):
    """A head that looks at the object and says of which class it is."""

    question = "does it look at the object?"
    signs: ClassVar = {"object_attention": 1, "ablation_delta": 1, "logit_attribution": 1, "gate_importance": 1}
    reads: ClassVar = TEXTURES
    like: ClassVar[Sequence[str]] = ("against", "together")  # they look at it, too

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        canvas.look_for(site, heads[0], self.reads, 8.0)
        value, output = canvas.rows(site, self.reads), 0.5 * canvas.rows(site, EVIDENCE)
        canvas.write(site, heads[0], value=value, value_bias=torch.zeros(1), output=output)
        canvas.scale_evidence(site, heads[0], 1.5)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other textures on the same objects: what the head says about the classes follows them."""
        seen = canvas.seen
        shown = (seen.labels + 1) % CLASSES
        return follows(canvas, site, heads, draw(len(shown), canvas.seed_of_seen, shown=shown), shown)


def follows(canvas: Canvas, site: int, heads: Sequence[int], changed: World, to: torch.Tensor) -> bool:
    """The class that the heads speak for is, mostly, the one that the images were changed to."""
    without = canvas.logits(changed.images, [(site, head) for head in heads])
    said = (canvas.logits(changed.images) - without).argmax(1)
    return bool((said == to).double().mean() > 0.7)


class Shortcut(Object):
    """A head that looks at the mark in the corner and says of which class it is."""

    question = "does it carry a shortcut?"
    signs: ClassVar = {"ablation_delta": 1, "logit_attribution": 1, "object_attention": -1, "token_kinds.border": 1}
    reads: ClassVar = MARKS
    like: ClassVar[Sequence[str]] = ()
    first = True

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        return site.stage == 0

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Other marks in the same images: what the head says about the classes follows them."""
        marked = (canvas.seen.marks + 1) % CLASSES
        return follows(canvas, site, heads, draw(len(marked), canvas.seed_of_seen, marked=marked), marked)


class Against(Object):
    """A head that looks at the object and writes evidence against its class."""

    question = "does it hurt?"
    signs: ClassVar = {"ablation_delta": -1, "logit_attribution": -1, "logit_attribution.against": 1}
    like: ClassVar[Sequence[str]] = ()

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        super().plant(canvas, site, heads)
        canvas.write(site, heads[0], output=-canvas.parts(site, heads[0])["output"])
        canvas.scale_evidence(site, heads[0], -0.7)

    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Without its columns of W_O the loss falls."""
        return canvas.loss([(site, heads[0])]) < canvas.loss() - 0.02


class Together(Plant):
    """Two heads that write the same evidence into a channel that one of them fills: only removing both costs something.

    An MLP unit per class turns the channel on when it is above a threshold, and clips what comes on top.
    """

    question = "are the two needed only together?"
    heads = 2
    signs: ClassVar = {"interaction": 1, "ablation_delta": 1, "gate_importance": 1}
    first = True

    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        value, output = canvas.rows(site, TEXTURES), canvas.rows(site, SCRATCH)
        for head in heads:
            canvas.look_for(site, head, TEXTURES, 8.0)
            canvas.write(site, head, value=value, value_bias=torch.zeros(1), output=output)
            canvas.scale_write(site, head, 0.25)
        self._clip(canvas, site, heads)

    @torch.no_grad()
    def _clip(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        """relu(s - a) - relu(s - b) for each class, a and b below what one head writes on the object's class."""
        (reads, writes), rows = canvas.mlp(site), canvas.rows(site, SCRATCH)
        with_one = canvas.entering_mlp(site, without=heads[1:]) @ rows.T  # (B, T, K)
        right = with_one[torch.arange(len(with_one)), :, canvas.seen.labels]
        full = float(right[right > 0.4 * right.quantile(0.99)].quantile(0.2))  # where one head finds the object
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
        """One may go for little, both may not."""
        alone = [canvas.loss([(site, head)]) - canvas.loss() for head in heads]
        both = canvas.loss([(site, head) for head in heads]) - canvas.loss()
        return both > 0.05 and max(map(abs, alone)) < both / 3


class Planted(NamedTuple):
    """A planted head or group. heads: flat indices.

    verified: whether an intervention on the finished model shows it of these heads, and not of as many others of the
    same layer that are nothing in particular: a check that all heads pass would say nothing.
    """

    name: str
    plant: Plant
    heads: tuple[int, ...]
    verified: bool


def known() -> dict[str, Plant]:
    """Every plant, by its name."""
    return by_name(sys.modules[__name__], Plant)  # type: ignore[type-abstract]


def grow(family: str, seed: int) -> tuple[Canvas, list[Planted]]:
    """A finished model of a family with every plant at a random place, among heads that do nothing in particular.

    The same seed gives the same model.
    """
    canvas, plants = Canvas(family, seed), known()
    where = _places(canvas, plants)
    taken = {(site, head) for site, heads in where.values() for head in heads}
    for site, about in enumerate(canvas.layout.sites):
        for head in range(about.num_heads):
            if (site, head) not in taken:
                filler(canvas, site, head)
        for name, (there, heads) in where.items():
            if there == site:
                plants[name].plant(canvas, site, heads)
        _fill_mlp(canvas, site)

    planted = []
    for name, (site, heads) in where.items():
        plant, flat = plants[name], tuple(canvas.layout.flat(site, head) for head in heads)
        free = [head for head in range(canvas.site(site).num_heads) if (site, head) not in taken]
        others = tuple([*free, *heads][: len(heads)])  # where too few are free, one with the plant
        shown = plant.verified(canvas, site, heads) and not plant.verified(canvas, site, others)
        planted.append(Planted(name, plant, flat, shown))
    return canvas, planted


def _places(canvas: Canvas, plants: Mapping[str, Plant]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Plant -> its site, and its heads there; those that fit in few places first."""
    free = {site: list(range(about.num_heads)) for site, about in enumerate(canvas.layout.sites)}
    found = {}
    for name, plant in sorted(plants.items(), key=lambda item: not item[1].first):
        # a head is left to compare with
        fit = [site for site in free if plant.fits(canvas, canvas.site(site)) and len(free[site]) > plant.heads]
        if not fit:
            raise UserError(f"headbench: no layer of the {canvas.family} has room for {name}.")
        site = fit[int(torch.randint(len(fit), (), generator=canvas.random))]
        chosen = torch.randperm(len(free[site]), generator=canvas.random)[: plant.heads]
        heads = tuple(free[site][i] for i in chosen.tolist())
        free[site] = [head for head in free[site] if head not in heads]
        found[name] = (site, heads)
    return found


@torch.no_grad()
def _fill_mlp(canvas: Canvas, site: int) -> None:
    """The hidden units that no plant took read and write noise."""
    (reads, writes), rows = canvas.mlp(site), canvas.rows(site, NOISES)
    (free,) = (reads.weight.abs().sum(1) == 0).nonzero(as_tuple=True)
    random = canvas.random
    reads.weight[free] = torch.randn(len(free), len(rows), generator=random) @ rows / len(rows) ** 0.5
    writes.weight[:, free] = 0.05 * (torch.randn(len(free), len(rows), generator=random) @ rows).T
