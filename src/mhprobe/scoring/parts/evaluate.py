"""Scores of many head masks on one split, per image, walking the data once.

All ranks get the same numbers.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.data.batch import Batch, Walk
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.gates.fill import Fill
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import HeadLayout
from mhprobe.io.progress import Advance, progress
from mhprobe.masking.base import Evaluate, Scores
from mhprobe.masking.parts.cache import MaskCache, describe
from mhprobe.measures.parts.losses import gate_slopes
from mhprobe.recording.fills import beyond_fill
from mhprobe.recording.measuring import score_heads
from mhprobe.recording.outputs import broken, refuse_broken
from mhprobe.recording.record import record
from mhprobe.recording.replay import Replay, gate_values
from mhprobe.scoring.base import Score
from mhprobe.scoring.labels import Labels
from mhprobe.scoring.parts.tally import refuse_missed


class MaskedAs(NamedTuple):
    """Replacements of masked heads.

    fill: in the place of masked heads, None for zeros. rescale: multiply the heads that a layer
    keeps by open heads over kept ones.
    """

    fill: Fill | None = None
    rescale: bool = False


class Evaluator(Evaluate):
    """A function from masks (M, A) bool, True = off, to their Scores on the split.

    batches: starts a new walk over the split's transformed batches; under DDP each rank walks its
    share. label: the progress bar's text; "" draws none. pick: starts a walk over the images at
    these positions; None to walk all and drop the others. masked: what stands in for masked heads.
    score: by default the labels; slopes are of what it says. cache: of all answers; its key must
    name the score and what stands in.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Walk,
        num_images: int,
        label: str = "",
        *,
        pick: Callable[[Tensor], Iterable[Batch]] | None = None,
        masked: MaskedAs = MaskedAs(),
        cache: MaskCache | None = None,
        score: Score | None = None,
    ) -> None:
        self.score = score or Labels()
        self.fill, self.rescale = masked
        self.scored = self.score.scored
        self.model, self.gates = model, gates_of(model)
        self.batches, self.pick, self.images = batches, pick, num_images
        self.label, self.cache = label, cache
        self.spent, self.computed = 0, 0
        self.advance: Advance | None = None

    def __call__(self, masks: Tensor, images: Tensor | None = None) -> Scores:
        self.spent += len(masks) * (self.images if images is None else len(images))
        cache = self.cache
        if cache is None:
            return self._score(masks, images)
        # rank 0 reads for all: they may see the file in different states
        hits, right, losses = ranks.from_rank_zero(lambda: cache.load(masks, images, self.images))
        if not hits.all():
            fresh = self._score(masks[~hits], images)
            right[~hits], losses[~hits] = fresh
            if ranks.rank() == 0:
                cache.save(masks[~hits], images, fresh)
        return Scores(right, losses)

    def keep(self, mask: Tensor, scores: Scores) -> None:
        """Keep complete scores that a search put together from pieces, for who asks for them whole."""
        if self.cache is None or ranks.rank():
            return
        known = self.cache.load(mask[None], None, self.images)[0]
        if not known.all():
            self.cache.save(mask[None], None, scores)

    def _score(self, masks: Tensor, images: Tensor | None) -> Scores:
        if (
            self.score.banked and len(masks) > 1
        ):  # one by one: training images are evaluated under each mask
            return Scores(
                *map(
                    torch.cat,
                    zip(*(self._score(mask[None], images) for mask in masks), strict=True),
                )
            )
        chosen = torch.arange(self.images) if images is None else images
        device = self.gates.values.device
        right_Mn = torch.zeros(len(masks), len(chosen), dtype=torch.uint8, device=device)
        losses_Mn = torch.zeros(len(masks), len(chosen), dtype=torch.float64, device=device)
        seen_n = torch.zeros(len(chosen), dtype=torch.long, device=device)
        broken_n = torch.zeros_like(seen_n)
        place = torch.full((self.images,), -1, device=device)
        place[chosen.to(device)] = torch.arange(len(chosen), device=device)
        replay = Replay(self.model, masks, self.rescale, smaller=True, fill=self.fill)
        with torch.inference_mode(), self._shown(len(masks) * len(chosen)):
            score = self.score.beside(replay)
            for batch in (
                self.batches() if images is None or self.pick is None else self.pick(images)
            ):
                wanted = batch.valid & (place[batch.index] >= 0)
                if not wanted.any():
                    continue
                at, labels = place[batch.index[wanted]], batch.labels[wanted]
                outputs = replay(batch.images[wanted])
                right_MB, losses_Mn[:, at] = score(outputs, batch.index[wanted], labels)
                broken_n[at] = broken(outputs).long()
                right_Mn[:, at] = right_MB.to(torch.uint8)
                seen_n.index_add_(0, at, torch.ones_like(at))
                self._done(len(masks) * len(at))
        for part in (right_Mn, losses_Mn, seen_n, broken_n):
            ranks.total(part)
        broken_N = torch.zeros(self.images, dtype=torch.bool)
        broken_N[chosen.cpu()] = broken_n.cpu() > 0
        refuse_broken(broken_N, "evaluation: the output of the masked model")
        refuse_missed(seen_n)
        self.computed += len(masks) * len(chosen)
        return Scores(right_Mn.bool().cpu(), losses_Mn.cpu())

    def slopes(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        sums = self._mean(
            "slopes",
            mask,
            lambda share_BA: torch.stack([share_BA.sum(0), share_BA.square().sum(0)]),
        )
        mean, square = sums.view(2, -1)
        return mean, square

    def fisher(self, mask: Tensor) -> list[Tensor]:
        sizes = [site.num_heads for site in self.gates.layout.sites]

        def summed(share_BA: Tensor) -> Tensor:
            return torch.cat(
                [(part_BH.mT @ part_BH).flatten() for part_BH in share_BA.split(sizes, 1)]
            )

        blocks = self._mean("fisher_blocks", mask, summed).split([size**2 for size in sizes])
        return [block.view(size, size) for block, size in zip(blocks, sizes, strict=True)]

    def _mean(self, name: str, mask: Tensor, summed: Callable[[Tensor], Tensor]) -> Tensor:
        self.spent += 2 * self.images

        def find() -> Tensor:
            with self._shown(2 * self.images):
                total: Any = sum(summed(share_BA) for share_BA in self._shares(mask))
            return ranks.total(total).cpu() / self.images

        return self._remembered(find, name, mask)

    def _shares(self, mask: Tensor) -> Iterator[Tensor]:
        """(B, A) float64 per batch: slope of each valid image's loss along the share that a gate lets through."""
        values = self._values(mask)
        for batch in self._sloped():
            fill = None if self.fill is None else self.fill.for_images(batch.images)
            with self.gates.filled(fill, values[None]), self.gates.fixed(values):
                heads = record(
                    self.model,
                    batch.images,
                    batch.labels,
                    {"grad"},
                    batch.valid,
                    batch.index,
                    of=self.score.slopes_of,
                )
                heads = heads if fill is None else beyond_fill(heads, fill, self.gates.layout)
                share_BA = (gate_slopes(heads, "evaluation") * values)[batch.valid]
            yield share_BA
            self._seen(batch)
        self.computed += 2 * self.images

    def measure(
        self, make: Callable[[HeadLayout], Any], mask: Tensor, column: str = "value"
    ) -> Tensor:
        if self.fill is not None and mask.any():
            raise UserError(
                "masking: measures score the masked model with nothing in the masked heads' place; "
                "expected "
                "rescore_every=null with a fill, or fill=zero."
            )

        def find() -> Tensor:
            scores_by = make(self.gates.layout)
            walks = 1 if scores_by.select_needs is None else 2
            with self._shown(walks * 2 * self.images), self.gates.fixed(self._values(mask)):
                return score_heads(
                    self.model,
                    scores_by,
                    self._sloped,
                    column,
                    of=self.score.slopes_of,
                    done=self._seen,
                ).double()

        try:
            name = describe(make)
        except ValueError:  # nothing can stand for it in the cache
            return find()
        return self._remembered(find, "measure", name, column, mask)

    def _remembered(self, find: Callable[[], Tensor], *question: Any) -> Tensor:
        if self.cache is None:
            return find()
        numbers = ranks.from_rank_zero(lambda: self.cache.numbers(*question))  # type: ignore[union-attr]
        if numbers is None:
            numbers = find()
            if ranks.rank() == 0:
                self.cache.save_numbers(numbers, *question)
        return numbers

    @contextlib.contextmanager
    def watched(self, total: int) -> Iterator[Callable[[str, int], None]]:
        with (
            progress(self.label, total, "image-forwards", bool(self.label)) as advance,
            meanwhile([self], advance=advance),
        ):
            yield lambda text, done: advance(0, f"{self.label} {text}", done)

    def _shown(self, total: int) -> AbstractContextManager[Any]:
        """``watched``, unless a search shows the progress of all its evaluations."""
        return contextlib.nullcontext() if self.advance else self.watched(total)

    def _sloped(self) -> Iterator[Batch]:
        for batch in self.batches():
            yield batch.unlabelled if self.score.slopes_of == "norm" else self.score.sloped(batch)

    def _seen(self, batch: Batch) -> None:
        self._done(2 * int(batch.valid.sum()))

    def _values(self, mask: Tensor) -> Tensor:
        return gate_values(self.gates, mask[None], self.rescale)[0]

    def _done(self, pieces: int) -> None:
        if self.advance is not None:
            self.advance(pieces * ranks.size())
