"""Ablation of heads: the images that go wrong, and the rise of the loss, when one head alone is switched off.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, section 3.2. Here the differences are paired over the
same images: exact McNemar for accuracy with Holm's correction over heads, Newcombe's interval, and
a bootstrap for the loss.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhprobe.errors import Natural
from mhprobe.heads import KINDS, Ablation, FillName, HeadBatch, HeadLayout
from mhprobe.measures.base import Meaning, counts, mean_of
from mhprobe.measures.parts.losses import PairedLosses, PerClass, labels_of
from mhprobe.stats.significance import holm, mcnemar


class AblationDelta(PerClass, PairedLosses):
    """Rise of the loss and drop of accuracy when one head is masked, for every head, paired on the same images.

    fill: replacement of the head's output: zero (as in a removal), its mean, its mean_per_position,
    its output on another image (resample), or the optimal constant; found on the selection images.
    bins: the neurons of a layer are masked in so many equal parts, one at a time, and have the
    numbers of their part; 0 leaves neurons out. Raises UserError for another fill, or number.

    Columns, (A,) unless said otherwise, larger is more important, negative where masking helps:
    value: mean rise of the loss, in nats, with standard_error, low and high (95 %); drop: accuracy
    unmasked - masked, in [-1, 1], with drop_low and drop_high (95 %); lost, won: number of images
    that only the unmasked, only the masked model gets right;
    p: exact McNemar of the two; p_holm: over all masks; accuracy: () of the unmasked model;
    by_class (A, C): drop within each class, NaN without images; class_p_holm (A, C): of McNemar
    within it, Holm over heads and classes; class_accuracy (A, C): of the unmasked model, equal
    rows. With fill=resample many images share a donor: low and high are over other donors, too;
    drop_low, drop_high and every p are for the donors that were drawn.

    >>> import math, torch
    >>> from mhprobe.heads import Ablation, HeadBatch, HeadLayout, HeadSite
    >>> layout = HeadLayout((HeadSite("attn", 0, 0, num_heads=2, head_dim=1),))
    >>> logits = torch.zeros(1, 2)  # undecided between two classes, with all heads
    >>> without = torch.tensor([[[0.0, math.log(3)]], [[0.0, 0.0]]])  # (2 masks, 1 image, 2 classes)
    >>> batch = HeadBatch(
    ...     z=(), logits=logits, labels=torch.tensor([0]), valid=torch.tensor([True]),
    ...     ablated={Ablation(((0,), (1,))): without},
    ... )
    >>> measure = AblationDelta(layout)
    >>> measure.update(batch)
    >>> [round(value, 4) for value in measure.compute().tolist()]  # ln 4 - ln 2 without head 0
    [0.6931, 0.0]
    """

    fooled_by = "seen: two heads that do the same: neither is missed alone; live heads that nobody misses look dead"
    label = "rise of the loss without the head (nats)"
    unit = "nats"
    larger = "the loss depends more on the head; below 0 it is lower without it"
    masks = True
    also = ("by_class",)
    tables = ("by_class", "class_p_holm", "class_accuracy")
    along: ClassVar[Mapping[str, Meaning]] = {
        "by_class": Meaning(
            "accuracy that the images of a class lose without the head",
            "the class depends more on the head; below 0 masking helps it",
        ),
        "class_p_holm": Meaning(
            "p of the loss of a class (McNemar's exact test, Holm over heads and classes)",
            "nothing: a small p shows an effect",
        ),
        "class_accuracy": Meaning(
            "accuracy of the unmasked network on the images of a class",
            "the network is right on more images of the class",
        ),
    }

    class_right: Tensor = counts("C")  # right with all heads
    class_lost: Tensor = counts("A", "C")  # right with the head only
    class_won: Tensor = counts("A", "C")  # right without it only

    def __init__(
        self, layout: HeadLayout, fill: FillName = "zero", bins: Natural = 0, **kwargs: Any
    ) -> None:
        self.of_units = frozenset(KINDS) if bins else self.of_units
        counts = [
            site.num_heads if site.kind == "head" else min(bins or 1, site.num_heads)
            for site in layout.sites
        ]
        parts = [
            replace(site, num_heads=count) for site, count in zip(layout.sites, counts, strict=True)
        ]
        super().__init__(HeadLayout(tuple(parts), layout.blocks) if bins else layout, **kwargs)
        starts = zip(layout.sites, parts, self.layout.offsets, strict=False)
        self.part_of = [
            start + unit * part.num_heads // site.num_heads
            for site, part, start in starts
            for unit in range(site.num_heads)
        ]
        self.layout = layout
        masks = itertools.groupby(range(layout.num_heads), key=self.part_of.__getitem__)
        self.ablation = Ablation(tuple(tuple(units) for _, units in masks), fill)
        if fill != "zero":
            self.label = (
                f"rise of the loss with {fill.replace('_', ' ')} in the head's place (nats)"
            )
        self.needs = frozenset({self.ablation})

    def add(self, batch: HeadBatch) -> None:
        right, right_AV = self.compare(batch)
        labels = labels_of(batch, self.name)
        self.class_images += torch.bincount(labels, minlength=len(self.class_images))
        self.class_right += torch.bincount(labels[right], minlength=len(self.class_images))
        self.class_lost.index_add_(1, labels, (right & ~right_AV).long())
        self.class_won.index_add_(1, labels, (~right & right_AV).long())

    def finish(self) -> dict[str, Tensor]:
        p = mcnemar(self.lost, self.won)
        class_p = mcnemar(self.class_lost, self.class_won)
        columns = {
            **self.losses(),
            **self.drops(),
            "lost": self.lost,
            "won": self.won,
            "p": p,
            "p_holm": holm(p),
            "accuracy": self.whole(),
            "by_class": mean_of(self.class_lost - self.class_won, self.class_images),
            "class_p_holm": holm(class_p.where(self.class_images > 0, torch.nan).flatten()).view_as(
                class_p
            ),
            "class_accuracy": mean_of(self.class_right, self.class_images).expand(
                self.class_lost.shape
            ),
        }
        return {
            name: values[self.part_of] if values.dim() else values
            for name, values in columns.items()
        }
