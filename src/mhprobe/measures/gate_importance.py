"""Gate importance: the change of an image's loss when a head is switched off, to first order.

Michel, Levy & Neubig, 2019, arXiv 1905.10650. The slope of an image's loss along a head's gate xi_h
at the present gates is dL/dxi_h = sum over tokens and width of z * dL/dz (= sum of W_O * dL/dW_O
over the head's columns).
"""

from typing import Any, Literal

import torch
from torch import Tensor

from mhprobe.heads import KINDS, HeadBatch, HeadLayout
from mhprobe.measures.base import Measure, counts, sums
from mhprobe.measures.parts.jackknife import FOLDS, fold_of, jackknife
from mhprobe.measures.parts.losses import gate_slopes, token_slopes
from mhprobe.stats.intervals import SIZE, of_skewed_mean

AbsAt = Literal["image", "token", "batch"]
Pow = Literal[1, 2]
Normalize = Literal["none", "layer_l2", "layer_l2_sqrtH"]
SQUARED = (
    "Fisher information of the gate: mean (dL/dξ)² (nats²)",
    "nats²",
)  # label and unit with power=2
_SIZES = {"layer_l2": "l2 norm", "layer_l2_sqrtH": "root mean square"}
_TINY = 1e-20  # Michel's guard in the layer norm: a layer without slopes scores 0


class GateImportance(Measure):
    """Mean over images of |d loss / d gate|, for all heads in one backward pass.

    abs_at: where the absolute value is taken; |batch| <= |image| <= |token|, and the rankings
        differ. "image": of the slope of an image's loss. Ours. "token": of a token's part of it,
        summed over tokens (Michel's BERT code, up to a constant per layer, which "layer_l2"
        removes). "batch": of the batch's summed slope (Hugging Face's run_bertology, TextPruner, up
        to a constant). There images cancel, so it depends on batch size and order.
    power: 1 for the absolute value; 2 for its square, which per image is the Fisher information
    (see Fisher).
    normalize: "none"; "layer_l2" divides each layer by its l2 norm (Michel), so that equal heads
        score 1/sqrt(H) and layers with few heads gain; "layer_l2_sqrtH" also multiplies by sqrt(H),
        which removes that bias.
    Raises UserError for other options.

    Columns, (A,) in nats of loss per unit of gate (a ratio if normalised), larger is more
    important: value; signed: mean slope, negative where opening the gate lowers the loss;
    standard_error of value over the units of abs_at (tokens: over images), NaN with a single one;
    low, high: 95 % interval that follows the skewness of the scores. If normalised, the interval
    comes from leaving out folds of images (jackknife.py; NaN with abs_at="batch"), and
    standard_error is NaN.

    >>> import torch
    >>> from mhprobe.heads import HeadBatch, HeadLayout, HeadSite
    >>> layout = HeadLayout((HeadSite("attn", 0, 0, num_heads=2, head_dim=1),))
    >>> z = torch.tensor([[1.0, 4.0], [3.0, 0.0]]).view(2, 1, 2, 1)  # (2 images, 1 token, 2 heads, width 1)
    >>> grad = torch.tensor([[0.5, 1.0], [-0.5, 1.0]]).view(2, 1, 2, 1)
    >>> batch = HeadBatch(z=(z,), grad=(grad,), logits=torch.zeros(2, 2), valid=torch.tensor([True, True]))
    >>> measure = GateImportance(layout)
    >>> measure.update(batch)
    >>> measure.compute().tolist(), measure.columns()["signed"].tolist()
    ([1.0, 2.0], [-0.5, 2.0])
    """

    fooled_by = "seen: a head that hurts looks like one that helps; two that stand in for each other look weak"
    needs = frozenset({"grad"})
    of_units = frozenset(KINDS)
    within = SIZE
    label = "gate importance: mean |dL/dξ| (nats)"
    unit = "nats"
    larger = "the loss depends more on the head"

    total: Tensor = sums(
        "A"
    )  # of the units' scores; a unit is an image, or a batch where abs_at="batch"
    square: Tensor = sums("A")  # of their squares
    cube: Tensor = sums("A")  # and of their third powers
    slope: Tensor = sums("A")  # of slopes
    of_folds: Tensor = sums(
        FOLDS, "A"
    )  # of scores by fold of images, and the images of each, if normalised
    in_folds: Tensor = counts(FOLDS)
    begun: Tensor = sums(
        "A"
    )  # of slopes of a batch of which pieces are still to come, where abs_at="batch"
    units: Tensor = counts()

    def __init__(
        self,
        layout: HeadLayout,
        abs_at: AbsAt = "image",
        power: Pow = 1,
        normalize: Normalize = "none",
        **kwargs: Any,
    ) -> None:
        super().__init__(layout, **kwargs)
        self.abs_at, self.power, self.normalize = abs_at, power, normalize
        if power == 2:
            self.label, self.unit = SQUARED
        if normalize != "none":
            self.label, self.unit = (
                f"{self.label.rpartition(' (')[0]}, over the layer's {_SIZES[normalize]}",
                "",
            )

    def add(self, batch: HeadBatch) -> None:
        slope_BA = gate_slopes(batch, self.name)[batch.valid]
        if self.abs_at == "image":
            score = (
                slope_BA.abs() ** self.power
            )  # before the sum: averaging first lets images cancel
        elif self.abs_at == "token":
            tokens = token_slopes(batch, self.name)
            score = torch.cat([t[batch.valid].abs().pow(self.power).sum(1) for t in tokens], 1)
        else:
            self.begun += slope_BA.sum(0)
            score = (
                self.begun.expand(int(batch.ends), -1).abs() ** self.power
            )  # none before the last piece
            self.begun *= not batch.ends
        if self.normalize != "none" and self.abs_at != "batch":
            fold = fold_of(batch)
            self.of_folds.index_add_(0, fold, score)
            self.in_folds += fold.bincount(minlength=FOLDS)
        self.total += score.sum(0)
        self.square += score.square().sum(0)
        self.cube += score.pow(3).sum(0)
        self.slope += slope_BA.sum(0)
        self.units += len(score)

    def finish(self) -> dict[str, Tensor]:
        of_units = of_skewed_mean(self.total, self.square, self.cube, self.units, self.within)
        share = self.units / self.images  # a batch may be a unit, but the mean is over images
        error, low, high = (of_units[name] * share for name in ("standard_error", "low", "high"))
        value = self.total / self.images
        signed = self.slope / self.images
        columns = {
            "value": value,
            "signed": signed,
            "standard_error": error,
            "low": low,
            "high": high,
        }
        if self.normalize == "none":
            return columns
        power = 0.5 if self.normalize == "layer_l2_sqrtH" else 0.0

        def scale(total: Tensor) -> Tensor:
            layers = self.layout.split(total)
            return torch.cat(
                [(len(of) ** power / (of.norm() + _TINY)).expand(len(of)) for of in layers]
            )

        left = self.total - self.of_folds
        scaled = jackknife(
            value * scale(value), lambda j: left[j] * scale(left[j]), self.in_folds, self.within
        )
        return {
            **columns,
            **scaled,
            "signed": signed * scale(value),
            "standard_error": error * torch.nan,
        }
