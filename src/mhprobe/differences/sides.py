"""The two sides of a comparison: networks that can be run naturally and on another's stream, and their pairing.

Pruned networks are paired unit by unit, by the numbers of their units in the dense network.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, family_of, input_spec
from mhprobe.differences.passes import Pass, run, units_of
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout, HeadSite, wide
from mhprobe.recording.checks import sized
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting, usable


class Side(Protocol):
    """A network to compare.

    layout: of its heads and neurons. kept: by site the numbers of its units in the dense network,
    where some are gone. notes: sentences on what cannot be compared.
    """

    name: str
    layout: HeadLayout
    kept: dict[str, list[int]]
    notes: list[str]

    def run(self, images: Tensor, fed: Pass | None = None) -> Pass:
        """Run it naturally, or on the streams of another pass."""
        ...

    def output(self, site: HeadSite) -> Tensor | None:
        """(H, D, C) W_O of a site's heads with their gates; None where it is not known."""
        ...


class Torch:
    """A PyTorch network as a side. UserError as of ``passes.units_of``."""

    def __init__(self, model: nn.Module, name: str = "") -> None:
        self.model, self.name = model, name or type(model).__name__
        self.backbone = backbone_of(model)
        self.layout, reason = units_of(model)
        self.kept: dict[str, list[int]] = dict(getattr(self.backbone, "kept_heads", {}))
        self.notes = [reason] if reason else []
        self.gates = gates_of(model)

    @property
    def dtype(self) -> torch.dtype:
        return next(
            weight.dtype for weight in self.model.parameters() if weight.is_floating_point()
        )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of its images, in pixels."""
        height, width = input_spec(self.backbone)["size"]
        return height, width

    def run(
        self,
        images: Tensor,
        fed: Pass | None = None,
        borrowed: dict[str, Tensor] | None = None,
        attention: bool = True,
    ) -> Pass:
        return run(self.model, self.layout, images, fed, borrowed, attention)

    def logits(self, images: Tensor) -> Tensor:
        """(B, classes), and nothing else is kept."""
        images = images.to(next(self.model.parameters()))
        with inspecting(self.model, gradients=False, freeze=False), sized(self.model, images):
            return logits_of(self.model(usable(images)), self.model).detach()

    def output(self, site: HeadSite) -> Tensor | None:
        family = family_of(self.backbone)
        layer: Any = family.seam(self.backbone, site).output
        weight = getattr(layer, "linear", layer).weight
        weight = weight() if callable(weight) else weight  # of a dynamically quantised layer
        weight = weight.dequantize() if weight.is_quantized else weight
        weight = wide(weight.detach().flatten(1))
        out_HDC = weight.mT.unflatten(0, (site.num_heads, site.head_dim))
        scale = family.layer_scale(self.backbone, site)
        return out_HDC if scale is None else out_HDC * wide(scale.flatten())

    def gate(self, site: HeadSite) -> Tensor:
        """(H,) gates of a site's units."""
        for number, other in enumerate(self.gates.layout.sites):
            if other.name == site.name:
                return self.gates.layout.split(self.gates.effective())[number].detach()
        return torch.ones(site.num_heads)


class Pair(NamedTuple):
    """A site of A, and its units in B.

    number: of the site in A's layout of its kind; other: in B's, None if it is gone. numbers: (U,)
    of A's units in the dense network. mine, theirs: positions of the units that both have, in A and
    in B.
    """

    site: HeadSite
    number: int
    other: int | None
    numbers: list[int]
    mine: list[int]
    theirs: list[int]

    @property
    def removed(self) -> list[int]:
        """Numbers of the units that only A has."""
        left = set(self.mine)
        return [unit for at, unit in enumerate(self.numbers) if at not in left]


def paired(a: Side, b: Side, kind: str) -> list[Pair]:
    """Pair the sites of one kind.

    Raises UserError where B is another architecture, or has units that A has not.
    """
    ours, theirs = ([site for site in side.layout.sites if site.kind == kind] for side in (a, b))
    names = {site.name: at for at, site in enumerate(theirs)}
    pairs = []
    for number, site in enumerate(ours):
        other = names.get(site.name)
        if other is None and site.name not in b.kept:
            raise _unlike(a, b, f"{b.name} has no {site.name}")
        if other is not None:
            _refuse_other_site(a, b, site, theirs[other])
        numbers = a.kept.get(site.name, list(range(site.num_heads)))
        count = 0 if other is None else theirs[other].num_heads
        left = b.kept.get(site.name, list(range(count)))
        if not set(left) <= set(numbers):
            raise UserError(
                f"diff: {b.name} has {kind}s of {site.name} that {a.name} has not. Give the network "
                "from which the other was made first."
            )
        places = {unit: at for at, unit in enumerate(numbers)}
        mine = [places[unit] for unit in left]
        pairs.append(Pair(site, number, other, numbers, mine, list(range(len(left)))))
    return pairs


def _refuse_other_site(a: Side, b: Side, mine: HeadSite, theirs: HeadSite) -> None:
    """Raise UserError for a site of other widths, or of another number of units that no file explains."""
    told = mine.name in b.kept or mine.name in a.kept
    counts = f"{mine.num_heads} {mine.kind}s in one and {theirs.num_heads} in the other"
    if not told and mine.num_heads != theirs.num_heads:
        raise _unlike(a, b, f"{mine.name} has {counts}")
    if theirs.head_dim != mine.head_dim:
        raise _unlike(a, b, f"{mine.name} has {mine.kind}s of other widths")


def refuse_other_blocks(a: Side, b: Side) -> None:
    """Raise UserError for two networks of other classes, or with other blocks."""
    blocks = [[block.name for block in side.layout.blocks] for side in (a, b)]
    if isinstance(a, Torch) and isinstance(b, Torch):
        kinds = [type(side.backbone).__name__ for side in (a, b)]
        if kinds[0] != kinds[1]:
            raise _unlike(a, b, f"a {kinds[0]} and a {kinds[1]}")
    if blocks[0] != blocks[1]:
        raise _unlike(a, b, f"{len(blocks[0])} and {len(blocks[1])} blocks, or of other names")


def refuse_unlike(a: Side, b: Side) -> None:
    """Raise UserError for two networks of other blocks or tokens."""
    refuse_other_blocks(a, b)
    grids = [{site.block: site.grid for site in side.layout.sites} for side in (a, b)]
    for block in grids[0].keys() & grids[1].keys():
        if grids[0][block] != grids[1][block]:
            raise UserError(
                f"diff: block {block} has a grid of {grids[0][block]} patches in {a.name} and of "
                f"{grids[1][block]} in {b.name}: expected one size of images. Give --size, or build "
                "both for the same size."
            )


def _unlike(a: Side, b: Side, why: str) -> UserError:
    return UserError(
        f"diff: {a.name} and {b.name} are two architectures: {why}. Expected two networks of one "
        "architecture, as before and after a training, a pruning or an export."
    )
