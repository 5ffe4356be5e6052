"""Logits under many head masks; what the masks do not change is computed once.

A batch is walked down a tree of masks: blocks on which masks agree are computed once; where they
part, each goes on from there. At such a fork the block's attention is still common, up to the gates
on its heads: the first branch computes it, and the attention modules answer from memory for the
others. The rest is the model's own code, in the pieces that its family declares
(``Family.segments``).

Shapes: R masks that go through a block side by side.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, family_of, sliced
from mhprobe.backbones.base import Seam, Segments
from mhprobe.errors import UserError
from mhprobe.gates import HeadGates, gates_of
from mhprobe.gates.base import Instead
from mhprobe.gates.fill import Fill
from mhprobe.heads import HeadLayout
from mhprobe.recording.checks import sized
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.state import inspecting

_BUSY = {
    "cpu": 16,
    "cuda": 1024,
}  # images that keep a device busy; smaller batches go side by side ...
_WIDE = (
    1024 * 197 * 768
)  # ... on a GPU as long as no more numbers enter a block: those of ViT-B/16 at 224 px
# numbers that a block holds for each that enters it: itself, three copies, the MLP's hidden ones
# twice
_HELD = 14


class Replay:
    """Run ``model`` under ``masks`` (M, A) bool, True = head off: a batch gives (M, B, C) logits, in eval mode.

    Equal to switching the gates and running the whole model, mask by mask; kept heads keep their
    gates' values.

    model: may wrap the backbone that carries the gates.
    rescale: multiply the heads that a layer keeps by its number of heads over how many it keeps,
        not counting heads with closed gates.
    smaller: compute on a copy without the heads that all masks switch off, if heads can be removed
        and nothing replaces them. Equal up to rounding: products of another size add in another
        order.
    instead: replacement of the masked heads' output, for one batch alone: per site (B or windows,
        T, H * D), before the gates, as taps see it, which refuse a wrapper that runs the backbone
        more than once.
    fill: replacement of masked heads' output. Raises UserError with ``rescale``.
    """

    def __init__(
        self,
        model: nn.Module,
        masks: Tensor,
        rescale: bool = False,
        smaller: bool = False,
        instead: Sequence[Tensor] | None = None,
        fill: Fill | None = None,
    ) -> None:
        if rescale and fill is not None:
            raise UserError(
                "masking: rescale and fill both replace masked heads; expected rescale=false or "
                "fill=zero."
            )
        self.model, self.backbone, self.gates, self.fill = (
            model,
            backbone_of(model),
            gates_of(model),
            fill,
        )
        self.versions, self.place = _versions(self.gates, masks, rescale, instead)
        backbone, gates, versions, family = (
            self.backbone,
            self.gates,
            self.versions,
            family_of(self.backbone),
        )
        off_A = (versions.values == 0).all(0)
        able = smaller and instead is None and fill is None and off_A.any() and not off_A.all()
        if able and family.unprunable(backbone, gates.layout.kinds) is None:
            backbone = sliced(backbone, gates.layout, gates.layout.kept(off_A.cpu())).eval()
            gates, versions = (
                attach(backbone, units=gates.layout.kinds),
                _Versions(versions.values[:, ~off_A]),
            )
        segments = family.segments(backbone)  # None if its forward cannot be taken apart
        seams = [
            (site.block, family.seam(backbone, site)) for site in gates.layout.of("head").sites
        ]
        self.tree = None if segments is None else _Tree(gates, seams, segments, versions)

    def __call__(self, images: Tensor, side_by_side: int | None = None) -> Tensor:
        """(M, B, C) logits of one batch.

        side_by_side: largest number of masks that go together once they have parted; None: as many
        as keep the device busy and fit into half of its free memory. With 1, and no smaller copy,
        every product is that of the whole model.
        """
        with inspecting(self.model, gradients=False), sized(self.model, images):
            logits, fill = None, None if self.fill is None else self.fill.for_images(images)
            if self.tree is not None:
                self.tree.widest, self.tree.fill = side_by_side, fill
                logits = _around(self.model, self.backbone, images, self.tree)
            if logits is None:
                logits = []
                for row in range(len(self.versions)):
                    with self.gates.side_by_side(*self.versions.at([row]), fill):
                        logits.append(logits_of(self.model(images), self.model))
            return torch.stack(logits)[self.place]


class _Versions(NamedTuple):
    """Different masks of one model. values: (M, A) factors of the heads."""

    values: Tensor
    instead: Instead | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def marks(self) -> Tensor:
        """(M, A) values that differ between masks: which outputs are replaced, else the factors."""
        return self.values if self.instead is None else self.instead.mask

    def at(self, rows: Sequence[int]) -> tuple[Tensor, Instead | None]:
        """Return the arguments of ``HeadGates.side_by_side`` for some of the masks."""
        chosen = list(rows)
        instead = (
            None if self.instead is None else Instead(self.instead.heads, self.instead.mask[chosen])
        )
        return self.values[chosen], instead


def _versions(
    gates: HeadGates, masks: Tensor, rescale: bool, heads: Sequence[Tensor] | None
) -> tuple[_Versions, Tensor]:
    """Different masks among ``masks``, and the place of each mask among them; closed gates make no difference."""
    if heads is None:
        values = gate_values(gates, masks, rescale)
        rows, place = torch.unique(
            values.view(torch.uint8), dim=0, return_inverse=True
        )  # bit by bit, as the walk does
        return _Versions(rows.view(values.dtype)), place
    present = gates.effective()
    rows, place = torch.unique(masks.cpu(), dim=0, return_inverse=True)
    return _Versions(present.expand(len(rows), -1), Instead(tuple(heads), rows)), place


def gate_values(gates: HeadGates, masks: Tensor, rescale: bool = False) -> Tensor:
    """(M, A) factors of the heads under ``masks``; ``rescale`` as for ``Replay``."""
    present = gates.effective()
    values = present.masked_fill(masks.to(present.device), 0)
    if not rescale:
        return values
    factors = [
        (before != 0).sum() / (after != 0).sum(1, keepdim=True).clamp(min=1).expand_as(after)
        for before, after in zip(
            gates.layout.split(present), gates.layout.split(values), strict=True
        )
    ]
    return values * torch.cat(factors, 1)


def _around(
    model: nn.Module, backbone: nn.Module, images: Tensor, tree: "_Tree"
) -> list[Tensor] | None:
    """Return a wrapper's outputs under each mask; None if it never calls the backbone's forward.

    The wrapper runs once per mask, and its calls of the backbone are answered. Every run makes the
    same calls, so the tree is walked in the first run alone.
    """
    answers: list[list[Tensor]] = []  # per call the logits under each mask
    logits = []

    def answer(mask: int, calls: Iterator[int], x: Tensor) -> Tensor:
        if (call := next(calls)) == len(answers):
            answers.append(tree.logits(x))
        return answers[call][mask]

    for mask in range(len(tree.versions)):
        with mock.patch.object(
            backbone, "forward", functools.partial(answer, mask, itertools.count())
        ):
            logits.append(logits_of(model(images), model))
        if not answers:
            return None
    return logits


class _Tree:
    """The walk of one batch through the blocks."""

    widest: int | None = 1  # masks side by side; None: what suits the device
    fill: Fill | None = None  # what stands in a head's place in this batch

    def __init__(
        self,
        gates: HeadGates,
        seams: list[tuple[int, Seam]],
        segments: Segments,
        versions: _Versions,
    ) -> None:
        self.gates, self.seams, self.segments, self.versions = gates, seams, segments, versions
        units = [_units_of(gates.layout, block) for block in range(len(segments.blocks))]
        marks = versions.marks.cpu()
        self.keys = [
            [bytes(row[of_block].view(torch.uint8).tolist()) for of_block in units] for row in marks
        ]

    def logits(self, images: Tensor) -> list[Tensor]:
        """Per mask, (B, C)."""
        self.outputs: dict[int, Tensor] = {}
        self._walk(0, self.segments.stem(images), range(len(self.versions)))
        return [self.outputs[mask] for mask in range(len(self.versions))]

    def _walk(self, block: int, x: Tensor, masks: Sequence[int]) -> None:
        """Run from ``block`` to the end, for masks that agree on all blocks before, with common output ``x``."""
        for number in range(block, len(self.segments.blocks)):
            branches: dict[bytes, list[int]] = {}
            for mask in masks:
                branches.setdefault(self.keys[mask][number], []).append(mask)
            if len(branches) > 1:
                self._fork(number, x, sorted(branches.values(), key=len, reverse=True))
                return
            x = self._run(number, x, masks[:1])
        self.outputs[masks[0]] = self.segments.tail(x)

    def _fork(self, block: int, x: Tensor, branches: list[list[int]]) -> None:
        with contextlib.ExitStack() as stack:
            for seam in [seam for at, seam in self.seams if at == block]:
                stack.enter_context(
                    mock.patch.object(seam.attention, "forward", _Remembering(seam))
                )
            free = torch.cuda.mem_get_info(x.device)[0] if x.is_cuda else None
            sizes = x.numel(), self.attended(block, x), x.element_size()
            for groups in self._beside(
                branches, self.widest or most_beside(x.device.type, len(x), *sizes, free)
            ):
                masks = [group[0] for group in groups]
                y = self._run(block, _copies(x, len(masks)), masks)
                if len(groups) == 1:
                    self._walk(block + 1, y, groups[0])
                    continue
                for number in range(block + 1, len(self.segments.blocks)):
                    y = self._run(number, y, masks)
                self.outputs.update(
                    zip(masks, self.segments.tail(y).chunk(len(masks)), strict=True)
                )

    def attended(self, block: int, x: Tensor) -> int:
        """Count the attention weights of a batch ``x`` in the widest site from ``block`` on."""
        tokens, sites = x[..., 0].numel(), self.gates.layout.of("head").sites
        keys = [
            math.prod(site.windows.size) if site.windows else tokens // len(x) for site in sites
        ]
        counts = [
            site.num_heads * of for site, of in zip(sites, keys, strict=True) if site.block >= block
        ]
        return tokens * max(counts, default=0)

    def _beside(self, branches: list[list[int]], widest: int) -> Iterator[list[list[int]]]:
        """Group branches that go together: those of a single mask, which never part again.

        The very first goes alone: its attention is remembered.
        """
        alone = max(1, sum(len(masks) > 1 for masks in branches))
        yield from ([masks] for masks in branches[:alone])
        for start in range(alone, len(branches), widest):
            yield branches[start : start + widest]

    def _run(self, block: int, x: Tensor, masks: Sequence[int]) -> Tensor:
        with self.gates.side_by_side(*self.versions.at(masks), self.fill):
            return self.segments.blocks[block](x)


class _Remembering:
    """Replacement of an attention's forward: computes its heads once, and from then on only the rest."""

    def __init__(self, seam: Seam) -> None:
        self.seam, self.forward = seam, seam.attention.forward
        self.heads: Tensor | None = None
        self.rows = 0  # of what came in then; of the heads there may be more: windows

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.heads is not None:
            return self.seam.rest(_copies(self.heads, len(x) // self.rows))
        self.rows = len(x)
        # in front of the gates: each branch applies its own
        with self.seam.point.register_forward_pre_hook(self._keep, prepend=True):
            return self.forward(x, *args, **kwargs)

    def _keep(self, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.heads = args[0]


def most_beside(
    device: str, images: int, numbers: int, attended: int, size: int, free: int | None
) -> int:
    """Largest number of copies of a batch side by side: enough to keep a kind of device busy, and to fit.

    numbers: that enter a block. attended: attention weights of one layer, held twice, before and
    after the softmax.
    size: bytes of each. free: bytes, of which half may be used; None for no limit.
    """
    busy = _BUSY.get(device, 1) // max(1, images)
    if free is not None:
        room = free // 2 // (size * (_HELD * numbers + 2 * attended))
        busy = min(busy, _WIDE // numbers, room)
    return max(1, busy)


def _copies(x: Tensor, count: int) -> Tensor:
    """(B, ...) -> (count * B, ...)."""
    return x if count == 1 else x.repeat(count, *[1] * (x.dim() - 1))


@functools.lru_cache(maxsize=4096)
def _units_of(layout: HeadLayout, block: int) -> Tensor:
    spans = [layout.span(number) for number, site in enumerate(layout.sites) if site.block == block]
    return torch.cat([torch.arange(0), *(torch.arange(span.start, span.stop) for span in spans)])
