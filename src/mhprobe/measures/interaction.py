"""Do two heads stand in for each other? The loss when both are masked, against the sum of masking each.

interaction(a, b) = L(without both) - L(without a) - L(without b) + L(with all), image by image.
Above 0 the heads are
redundant: masking both hurts more than the sum. Below 0 they work in series: without the first the
second costs less.
Shapes: K heads looked at.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.heads import Ablation, HeadBatch, HeadLayout, Need
from mhprobe.measures.base import Measure, sums
from mhprobe.measures.parts.losses import gate_slopes, outcomes_of
from mhprobe.stats.intervals import of_mean
from mhprobe.stats.significance import holm, two_sided

Which = Literal["most", "least"]


class Interaction(Measure):
    """Mean over images of the interaction on the loss, for pairs of heads, with paired intervals.

    heads: flat indices; all pairs among them. pairs: [a, b] pairs of flat indices, exactly these.
    Without both: all pairs among the ``top_k`` heads that are ``which`` ("most" or "least")
    important by gate importance on the selection images; without these images, among the first
    ``top_k`` heads. Raises UserError for both, for fewer than two heads, and for a malformed pair.

    Columns, (A, A), NaN for other pairs, in nats: value, larger: masking both hurts more than the
    sum of each; standard_error; low, high: Student's 95 % interval over images; p_holm: two-sided,
    Holm over the pairs; both: rise of the loss when both are masked; alone (A,): rise when the head
    alone is masked.
    """

    fooled_by = "by definition: a pair that was not looked at; and a loss that saturates makes unrelated heads interact"
    kind = "pairwise"
    label = "interaction: extra loss of masking both (nats)"
    unit = "nats"
    larger = "masking both costs more than the sum of each: they stand in for each other; below 0 they work in series"

    total: Tensor  # (P,) sum of the interaction
    square: Tensor  # (P,) sum of its squares
    both: Tensor  # (P,) sum of the rise of the loss with both masked
    alone: Tensor  # (K,) sum of the rise with one masked
    importance: Tensor = sums("A")  # of |slope| over selection images

    def __init__(
        self,
        layout: HeadLayout,
        heads: Sequence[int] | None = None,
        pairs: Sequence[Sequence[int]] | None = None,
        top_k: Annotated[int, 2] = 8,
        which: Which = "most",
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        if heads is not None and pairs is not None:
            raise UserError(
                "interaction: give heads (all pairs among them) or pairs (exactly these), not both."
            )
        if heads is None and pairs is None:
            self.select_needs = frozenset({"grad"})
        self.which = which
        first = range(min(top_k, layout.num_heads))
        chosen = first if heads is None else sorted(layout.indices(heads, "interaction: heads"))
        named = list(itertools.combinations(chosen, 2)) if pairs is None else _checked_pairs(pairs)
        if not named:
            raise UserError(
                f"interaction: expected at least two heads to pair, got heads={[*chosen]}, "
                f"pairs={pairs}."
            )
        layout.indices(sorted({head for pair in named for head in pair}), "interaction: pairs")
        self._look_at(named)
        for name, size in (
            ("total", self.pairs),
            ("square", self.pairs),
            ("both", self.pairs),
            ("alone", self.heads),
        ):
            self.add_state(name, torch.zeros(len(size), dtype=torch.float64))

    def select(self, batch: HeadBatch) -> None:
        self.importance += gate_slopes(batch, self.name)[batch.valid].abs().sum(0)

    def end_select(self) -> None:
        importance = ranks.total(self.importance.clone())
        order = importance.argsort(descending=self.which == "most", stable=True)
        self._look_at(list(itertools.combinations(sorted(order[: len(self.heads)].tolist()), 2)))

    def add(self, batch: HeadBatch) -> None:
        _, whole_B = outcomes_of(batch, batch.logits, self.name)
        _, loss_MB = outcomes_of(batch, batch.ablated[self.ablation], self.name)
        alone_KB, both_PB = (loss_MB - whole_B).split([len(self.heads), len(self.pairs)])
        first, second = torch.tensor(self.places, device=self.device).unbind(1)
        extra_PB = both_PB - alone_KB[first] - alone_KB[second]
        self.total += extra_PB.sum(1)
        self.square += extra_PB.square().sum(1)
        self.both += both_PB.sum(1)
        self.alone += alone_KB.sum(1)

    def finish(self) -> dict[str, Tensor]:
        of_pairs = of_mean(self.total, self.square, self.images)
        alone = self.total.new_full((self.layout.num_heads,), torch.nan)
        alone[list(self.heads)] = self.alone / self.images
        p = two_sided(of_pairs["value"], of_pairs["standard_error"], self.images - 1)
        of_pairs |= {"p_holm": holm(p), "both": self.both / self.images}
        return {
            **{name: self._matrix(values_P) for name, values_P in of_pairs.items()},
            "alone": alone,
        }

    def _look_at(self, pairs: list[tuple[int, int]]) -> None:
        self.pairs = tuple(pairs)
        self.heads = tuple(sorted({head for pair in pairs for head in pair}))
        self.places = tuple(
            (self.heads.index(a), self.heads.index(b)) for a, b in pairs
        )  # (P, 2) into heads
        self.ablation = Ablation((*((head,) for head in self.heads), *self.pairs))
        self.needs: frozenset[Need] = frozenset({self.ablation})

    def _matrix(self, values_P: Tensor) -> Tensor:
        """(A, A), symmetric, NaN for pairs that were not chosen."""
        matrix = values_P.new_full((self.layout.num_heads,) * 2, torch.nan)
        first, second = torch.tensor(self.pairs, device=values_P.device).unbind(1)
        matrix[first, second] = matrix[second, first] = values_P
        return matrix


def _checked_pairs(pairs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    checked = []
    for pair in pairs:
        if len(set(pair)) != 2 or len(pair) != 2:
            raise UserError(
                "interaction: pairs are of two different heads, e.g. [[0, 5], [3, 7]]; got "
                f"{list(pair)}."
            )
        checked.append((min(pair), max(pair)))
    if twice := [pair for pair, times in Counter(checked).items() if times > 1]:
        raise UserError(
            f"interaction: expected each pair once, got {list(twice[0])} {checked.count(twice[0])} "
            "times."
        )
    return checked
