"""One model with every plant in it, at random places among heads that do nothing in particular."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mhprobe.errors import UserError
from mhprobe.headbench import plants
from mhprobe.headbench.canvas import NOISES, Canvas
from mhprobe.headbench.plant import Plant, by_name, filler


@dataclass(frozen=True)
class Planted:
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
    return by_name(plants, Plant)  # type: ignore[type-abstract]


def grow(family: str, seed: int) -> tuple[Canvas, list[Planted]]:
    """A finished model of a family, and what is in it. The same seed gives the same model."""
    canvas = Canvas(family, seed)
    where = _places(canvas)
    taken = {(site, head): name for name, (site, heads) in where.items() for head in heads}
    everything = known()
    for site, about in enumerate(canvas.layout.sites):
        for head in range(about.num_heads):
            if (site, head) not in taken:
                filler(canvas, site, head)
        for name, (there, heads) in where.items():
            if there == site:
                everything[name].plant(canvas, site, heads)
        _fill_mlp(canvas, site)
    return canvas, [
        Planted(
            name,
            everything[name],
            tuple(canvas.layout.flat(site, head) for head in heads),
            everything[name].verified(canvas, site, heads)
            and not everything[name].verified(canvas, site, _control(canvas, taken, site, heads)),
        )
        for name, (site, heads) in where.items()
    ]


def _control(canvas: Canvas, taken: Mapping[tuple[int, int], str], site: int, heads: Sequence[int]) -> tuple[int, ...]:
    """Return as many heads of the same layer: first those without a plant, then, where they are too few, one with."""
    free = [head for head in range(canvas.site(site).num_heads) if (site, head) not in taken]
    return tuple([*free, *heads][: len(heads)])


def _places(canvas: Canvas) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Plant -> its site, and its heads there; those that fit in few places first."""
    free = {site: list(range(about.num_heads)) for site, about in enumerate(canvas.layout.sites)}
    found = {}
    for name, plant in sorted(known().items(), key=lambda item: not item[1].first):
        fit = [
            site
            for site, about in enumerate(canvas.layout.sites)
            if plant.fits(canvas, about) and len(free[site]) > plant.heads  # a head is left to compare with
        ]
        if not fit:
            raise UserError(f"headbench: the {canvas.family} has no room for {name}, expected a layer that it fits.")
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
