"""Direct logit attribution: what each head writes into each class's logit, past all later blocks.

Gandelsman, Efros & Steinhardt, 2024, arXiv 2310.05916 (CLIP's class token); Balasubramanian, Basu &
Feizi, 2024, arXiv 2406.01583 (other ViTs, Swin). How a write reaches the logits:
recording/direct.py. Contributions are taken above their mean over classes, which softmax does not
see. A head that works through later blocks writes nothing on this path.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from mhprobe.heads import HeadBatch
from mhprobe.measures.base import Meaning, mean_of, sums
from mhprobe.measures.parts.losses import PerClass, labels_of
from mhprobe.stats.intervals import of_mean
from mhprobe.stats.significance import holm, lower, standard_error, two_sided

FACTS = ("logit", "heads", "mlps", "embedding", "biases")


class LogitAttribution(PerClass):
    """Mean over images of what a head writes into the label's logit, above its mean over all classes.

    Columns, (A,) unless said otherwise, in units of the logits; larger speaks for the label,
    negative against: value, with standard_error, low and high (95 %); size: mean over images and
    classes of |contribution|; worst, worst_class: mean over the images of the class that the head
    speaks against most, and its number; against: number of classes that it speaks against on their
    images (Student's tests, Holm over heads and classes, 5 %); own (A, C): mean contribution to a
    class's logit on its images, NaN without any; own_error (A, C): its standard error, NaN below
    two images; own_p (A, C): its p after Holm, two-sided;
    everywhere (A, C): the mean over all images; logit: () mean of the label's logit above the mean
    logit, the sum of heads, mlps, embedding,
    biases: (); images: ().

    >>> import torch
    >>> from mhprobe.heads import Direct, HeadBatch, HeadLayout, HeadSite
    >>> layout = HeadLayout((HeadSite("attn", 0, 0, num_heads=2, head_dim=1),))
    >>> heads = torch.tensor([[[3.0, 1.0], [0.0, 4.0]]])  # one image, two heads, two classes
    >>> none = torch.zeros(1, 1, 2)
    >>> batch = HeadBatch(
    ...     z=(), logits=heads.sum(1), labels=torch.tensor([0]), valid=torch.tensor([True]),
    ...     direct=Direct(heads, none, none, none, none),
    ... )
    >>> measure = LogitAttribution(layout)
    >>> measure.update(batch)
    >>> measure.compute().tolist()  # above the mean of both classes
    [1.0, -2.0]
    """

    fooled_by = "by definition: a head that works by way of later blocks: it writes nothing into the logits itself"
    needs = frozenset({"direct"})
    label = "write into the label's logit, above the mean over classes"
    larger = "the head speaks for the label; below 0 against it"
    also = ("logits",)
    tables = ("own", "everywhere")
    along: ClassVar[Mapping[str, Meaning]] = {
        "own": Meaning(
            "mean contribution to a class's logit on its own images",
            "the head speaks for the class where it is shown; below 0 against it",
        ),
        "everywhere": Meaning(
            "mean contribution to a class's logit on all images",
            "the head speaks for the class on any image; below 0 against it",
        ),
    }

    total: Tensor = sums("A")  # over images of the contribution to the label's logit
    square: Tensor = sums("A")  # of its squares
    size: Tensor = sums("A")  # over images of the mean over classes of |contribution|
    facts: Tensor = sums(len(FACTS))  # over images
    class_total: Tensor = sums("A", "C")  # as total, image by image to its class
    class_square: Tensor = sums("A", "C")
    all_total: Tensor = sums("A", "C")  # over all images of the contribution to each class

    def add(self, batch: HeadBatch) -> None:
        direct = batch.need("direct", self.name)
        labels = labels_of(batch, self.name)
        parts = (part[batch.valid].double() for part in direct)
        heads_BAC, *others = (part - part.mean(-1, keepdim=True) for part in parts)
        bias, mlps, embedding, constant = (
            part.sum(1).gather(1, labels[:, None]).sum() for part in others
        )
        own_BA = heads_BAC.gather(
            2, labels[:, None, None].expand(-1, heads_BAC.shape[1], 1)
        ).squeeze(2)
        self.total += own_BA.sum(0)
        self.square += own_BA.square().sum(0)
        self.size += heads_BAC.abs().mean(2).sum(0)
        heads = own_BA.sum()
        self.facts += torch.stack(
            [heads + bias + mlps + embedding + constant, heads, mlps, embedding, bias + constant]
        )
        self.class_images += torch.bincount(labels, minlength=len(self.class_images))
        self.class_total.index_add_(1, labels, own_BA.mT)
        self.class_square.index_add_(1, labels, own_BA.mT.square())
        self.all_total += heads_BAC.sum(0)

    def finish(self) -> dict[str, Tensor]:
        images = self.images
        by_class = mean_of(self.class_total, self.class_images)
        error = standard_error(self.class_total, self.class_square, self.class_images)
        p = two_sided(by_class, error, self.class_images - 1).masked_fill(
            self.class_images < 2, torch.nan
        )
        p = holm(p.flatten()).view_as(p)
        worst, number = by_class.nan_to_num(torch.inf).min(1)
        return {
            **of_mean(self.total, self.square, images, self.within),
            "size": self.size / images,
            "worst": worst,
            "worst_class": number,
            "against": lower(p, by_class).sum(1),
            "own": by_class,
            "own_error": error.masked_fill(self.class_images < 2, torch.nan),
            "own_p": p,
            "everywhere": self.all_total / images,
            **dict(zip(FACTS, self.facts / images, strict=True)),
        }
