"""Base of plants and grafts: heads whose function is known because their weights were made for it."""

import abc
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from mhprobe.backbones.parts.opened import Opened
from mhprobe.headbench.canvas import EVIDENCE, NOISES, SCRATCH, TEXTURES, Canvas
from mhprobe.heads import HeadSite

# signs expected of a head that writes nothing, and of two heads that do the same
SILENT: Mapping[str, int] = dict.fromkeys(
    ("write_norm", "ablation_delta", "gate_importance", "fisher", "lrp_relevance", "logit_attribution.size"), -1
)
SAME: Mapping[str, int] = {
    **dict.fromkeys(("svcca", "cca", "pwcca", "cka", "procrustes", "weight_similarity"), 1),
    "js_distance": -1,
}

Kind = TypeVar("Kind")


class Made(abc.ABC):
    """Base of plants and grafts. A class's name gives the plant's: StandIn is stand_in.

    question: a user's, e.g. "is it dead?". heads: number of heads, all of one layer. signs: expected of each measure,
    or of a column of it, by the measure's docstring: +1 for large values, -1 for small ones.
    """

    question: ClassVar[str]
    heads: ClassVar[int] = 1
    signs: ClassVar[Mapping[str, int]] = {}


class Plant(Made):
    """A head, or a pair of heads, written by hand.

    signs: +1 for measures that are not named. like: plants that have the property too, which are left out of the
    comparison. first: placed before others, because it fits in few sites.
    """

    like: ClassVar[Sequence[str]] = ()
    first: ClassVar[bool] = False

    def fits(self, canvas: Canvas, site: HeadSite) -> bool:
        """Return True if the plant can stand there."""
        return True

    @abc.abstractmethod
    def plant(self, canvas: Canvas, site: int, heads: Sequence[int]) -> None:
        """Write the plant into these heads of a site; all earlier blocks are finished."""

    @abc.abstractmethod
    def verified(self, canvas: Canvas, site: int, heads: Sequence[int]) -> bool:
        """Return True if an intervention on the finished model shows the plant in these heads."""


def by_name(module: ModuleType, base: type[Kind]) -> dict[str, Kind]:
    """Make one of each class below ``base`` in a module, by its name in small letters, in the order of names."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base)]
    named = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in kinds if kind is not base}
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
        output=canvas.mixed(site, (*NOISES, *SCRATCH), width) + 0.15 * canvas.mixed(site, EVIDENCE, width),
    )
    if canvas.family == "swin":
        count = len(canvas.parts(site, head)["offsets"])
        parts["offsets"] = canvas.uniform(0.0, 1.0) * torch.randn(count, generator=random)
    canvas.write(site, head, **parts)
    canvas.scale_write(site, head, 10 ** canvas.uniform(-1.7, -0.7))


def carry(canvas: Canvas, site: int, head: int) -> None:
    """Write random values and outputs, below attention that was written before."""
    width, some = canvas.site(site).head_dim, (*NOISES, *TEXTURES)
    value, output = canvas.mixed(site, some, width), canvas.mixed(site, NOISES, width)
    canvas.write(site, head, value=value, value_bias=torch.zeros(width), output=output)
    canvas.scale_write(site, head, canvas.uniform(0.05, 0.15))


def moved_by(model: Opened, site: int, head: int, before: Tensor, directions: Tensor) -> Tensor:
    """(T, T) movement of the head's write per token by noise on each token of ``before`` (B, T, C); rows sum to 1."""
    tokens, generator = before.shape[1], torch.Generator().manual_seed(5)
    nudge = torch.randn(len(before), len(directions), generator=generator) @ directions
    nudge = 0.02 * before.norm(dim=-1).mean() * torch.nn.functional.normalize(nudge, dim=-1)
    still = model.write_of(site, head, before)
    nudged = before + torch.eye(tokens)[:, None, :, None] * nudge[:, None]  # (T, B, T, C): a token in each copy
    written = model.write_of(site, head, nudged.flatten(0, 1)).unflatten(0, (tokens, -1))
    moved = (written - still).norm(dim=-1).mean(1).T
    return moved / moved.sum(-1, keepdim=True).clamp(min=1e-12)


def share_at(at: HeadSite, share: Tensor, down: int, across: int) -> float:
    """The mean of (T, T) ``share`` at the token of an offset, over queries that can reach it."""
    high, wide = at.token_grid
    places, pairs = at.places(), at.support()
    can = torch.zeros(share.shape, dtype=torch.bool)
    window, seeing, seen = pairs.nonzero(as_tuple=True)
    can[places[window, seeing], places[window, seen]] = True
    cells = [(y, x) for y in range(high) for x in range(wide) if 0 <= y + down < high and 0 <= x + across < wide]
    query = at.prefix_tokens + torch.tensor([y * wide + x for y, x in cells])
    key = query + down * wide + across
    return float(share[query, key][can[query, key]].double().mean())
