"""Base of scores: when an image counts as right, and what its loss is.

One file of this package each.
"""

import abc
import inspect
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

import mhprobe.scoring
from mhprobe import ranks
from mhprobe.data.batch import Batch, Walk
from mhprobe.errors import UserError, quoted
from mhprobe.io.code import classes_in
from mhprobe.io.progress import progress
from mhprobe.masking.base import Scored
from mhprobe.recording.checks import sized
from mhprobe.recording.outputs import Of, broken, logits_of, refuse_broken
from mhprobe.recording.state import inspecting


class Score(abc.ABC):
    """Judges outputs, of masks or of a smaller model.

    Its class is the score; an instance knows a split's images.

    outputs: (N, C) of the unmasked model, in the order of the split; UserError for NaN, or fewer
    than ``columns``. labels: (N,).
    """

    scored: ClassVar[Scored]  # names of its numbers
    unmasked: ClassVar[bool] = True  # compares with the unmasked model
    labelled: ClassVar[bool] = False  # needs labels
    of_features: ClassVar[bool] = False  # can judge features, which are no logits
    columns: ClassVar[int] = (
        2  # columns C that outputs need; of a single one a score sees no change
    )
    banked: ClassVar[int] = (
        0  # training images of the judged model that it compares with at least, see ``beside``
    )
    least: ClassVar[int] = 1  # images of a split that it takes to judge one
    of: Of = "loss"  # slopes are of it, or of the norm of features, as for ``record``
    bank: "tuple[Walk, int] | None" = None
    places: Tensor | None = (
        None  # (N,) of the images of the split in the bank, where they are part of it
    )

    def __init__(self, outputs: Tensor | None = None, labels: Tensor | None = None) -> None:
        self.labels = labels
        if outputs is not None:
            refuse_broken(broken(outputs), "the output of the unmasked model")
            if outputs.shape[1] < self.columns:
                blind = (
                    "the cosine of a single number is only its sign"
                    if self.of_features
                    else "one logit is always right"
                )
                raise UserError(
                    f"score={self.scored.name}: {blind}, expected more outputs, got one. Take "
                    "difference."
                )
            self.outputs = outputs.double()
            self.classes = self.outputs.argmax(1)

    @property
    def single(self) -> bool:
        """True if the model has one output, whose cross-entropy is always 0."""
        outputs = getattr(self, "outputs", None)
        return outputs is not None and outputs.shape[1] == 1

    @property
    def slopes_of(self) -> Of:
        """The scalar that slopes are taken of: of a single output always the norm."""
        return "norm" if self.single else self.of

    @abc.abstractmethod
    def __call__(self, outputs: Tensor, index: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(M, B, C) outputs, (B,) positions in the split, (B,) labels -> right (M, B) bool, loss (M, B) float64."""

    def beside(self, outputs_of: Callable[[Tensor], Tensor]) -> "Score":
        """The score for one model: ``outputs_of`` gives its (1, B, C) outputs of images.

        A collective.
        """
        return self

    def sloped(self, batch: Batch) -> Batch:
        """The batch with labels for slopes of the loss: the classes of the unmasked model, if it compares with that."""
        return (
            batch._replace(labels=self.classes.to(batch.index.device)[batch.index])
            if self.unmasked
            else batch
        )


def known_scores() -> dict[str, type[Score]]:
    """Scores of all files of scoring/, by name."""
    return {score.scored.name: score for score in classes_in(mhprobe.scoring, Score)}


def score_for(
    choice: str | type[Score] | None,
    where: str,
    labelled: bool,
    features: bool,
    images: int,
    bank: int = 0,
) -> type[Score]:
    """The score by name or class; None: labels where there are any, else top1; cosine of a model of features.

    where: the option, for errors. images: of the smallest split that is judged. bank: number of
    training images. UserError for an unknown score, or one that images or model do not allow.
    """
    scores = known_scores()
    usual = "cosine" if features else "labels" if labelled else "top1"
    score = scores.get(choice or usual) if choice is None or isinstance(choice, str) else choice
    if not (inspect.isclass(score) and issubclass(score, Score)):
        raise UserError(
            f"{where}: expected one of {', '.join(sorted(scores))}, got {quoted(choice)}."
        )
    given = f"{where}={score.scored.name}"
    if score.labelled and not labelled:
        raise UserError(
            f"{given}: needs labels, and the images have none; without labels there is {usual}."
        )
    if features and not score.of_features:
        able = ", ".join(sorted(name for name, kind in scores.items() if kind.of_features))
        raise UserError(f"{given}: the model gives features, no logits; expected one of {able}.")
    _refuse_few(score, given, images, bank)
    return score


def _refuse_few(score: type[Score], given: str, images: int, bank: int) -> None:
    """Raise UserError for fewer images, or training images, than a score needs. given: the option as typed."""
    if images < score.least:
        raise UserError(
            f"{given}: needs {score.least} images to choose masks on and to judge them on, got "
            f"{images}. Give more images, keep more for validation, or take cosine or difference."
        )
    if bank < score.banked:
        raise UserError(
            f"{given}: compares with at least {score.banked} training images, got {bank}. Give a "
            "command more of them, or take knn, which needs none."
        )


def looked(
    score: type[Score],
    model: nn.Module,
    batches: Walk,
    images: int,
    bank: tuple[Walk, int] | None = None,
    show: bool = False,
    of: Of = "loss",
) -> Score:
    """The score of a split, with outputs of the unmasked ``model`` or a ``bank`` of training images. A collective.

    show: the progress of it. of: what slopes are taken of, as for ``record``.
    """
    if score.banked or not score.unmasked:
        judge = score()
        judge.bank, judge.of = bank, of
        return judge
    bar = progress("the whole network's outputs", images, show=show)
    with inspecting(model, gradients=False), bar as done:  # outside inference mode

        def outputs_of(images: Tensor) -> Tensor:
            done(len(images) * ranks.size())
            with sized(model, images):
                return logits_of(model(images), model)

        outputs, labels = outputs_of_split(outputs_of, batches, images)
    judge = score(outputs, labels if score.labelled else None)
    judge.of = of
    return judge


def outputs_of_split(
    outputs_of: Callable[[Tensor], Tensor], batches: Walk, images: int
) -> tuple[Tensor, Tensor]:
    """(N, C) outputs and (N,) labels of all images of a split, which ranks walk together.

    A collective.
    """
    outputs = torch.zeros(0)
    labels = torch.zeros(0)
    for batch in batches():
        of_batch, index = outputs_of(batch.images), batch.index[batch.valid]
        if not len(outputs):
            outputs = of_batch.new_zeros(images, of_batch.shape[1])
            labels = batch.labels.new_zeros(images)
        outputs[index], labels[index] = of_batch[batch.valid], batch.labels[batch.valid]
    assert len(outputs)  # every rank has a batch, if only of padding
    return ranks.total(outputs), ranks.total(labels)
