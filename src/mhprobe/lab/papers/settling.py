"""Settling: the epoch from which on the importance of heads no longer changes.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, sec. 6 and fig. 5: after every epoch the heads are
scored and the lowest 10, 20 ... 90 % masked at once. Drawn are validation accuracy and Spearman's
correlation of scores between epochs.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch

from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout
from mhprobe.measures.base import Measure
from mhprobe.report import tables
from mhprobe.report.figures import training
from mhprobe.report.report import Report, Result, Sample
from mhprobe.scoring.parts.evaluate import Evaluator
from mhprobe.stats.agreement import lowest, spearman

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Settling(L.Callback):
    """Callback that scores heads on validation images after every n-th epoch, and masks the lowest of them.

    measure: makes a per-head measure, larger meaning more important. every_n_epochs: of training.
    shares: of all heads, in (0, 1]; rounded to whole heads; UserError for others. Checkpoints keep
    earlier epochs: a resumed run draws all.

    ``tables/settling.csv``: epoch, share, heads_masked, accuracy, loss, chance;
    ``tables/settling_agreement.csv``: epoch_a, epoch_b, spearman; ``figures/settling.png``. All
    rewritten each time.
    """

    def __init__(
        self,
        report: Report,
        measure: Callable[[HeadLayout], Measure],
        every_n_epochs: int = 1,
        shares: Sequence[float] = SHARES,
    ) -> None:
        if not shares or not all(0 < share <= 1 for share in shares):
            raise UserError(
                f"shares: expected shares of the heads above 0 and up to 1, got {list(shares)}."
            )
        self.report, self.measure = report, measure
        self.every_n_epochs, self.shares = every_n_epochs, tuple(shares)
        self.rows: list[dict[str, Any]] = []
        self.scores: dict[int, list[float]] = {}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch
        if trainer.sanity_checking or (epoch + 1) % self.every_n_epochs or epoch in self.scores:
            return
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        walk, label = (
            functools.partial(data.batches, "val", pl_module.device),
            f"settling, epoch {epoch}" if trainer.is_global_zero else "",
        )
        evaluate = Evaluator(pl_module, walk, data.sizes["val"], label)
        heads = gates_of(pl_module).layout.num_heads
        score = evaluate.measure(self.measure, torch.zeros(heads, dtype=torch.bool))
        masks = torch.stack(
            [lowest(score, round(share * heads)) for share in (0.0, *self.shares)]
        )  # ties by index
        scores = evaluate(masks)
        self.scores[epoch] = score.tolist()
        columns = masks.sum(1).tolist(), scores.accuracy.tolist(), scores.mean_loss.tolist()
        for share, off, accuracy, loss in zip((0.0, *self.shares), *columns, strict=True):
            row = {
                "epoch": epoch,
                "share": share,
                "heads_masked": off,
                "accuracy": accuracy,
                "loss": loss,
            }
            self.rows.append({**row, "chance": 1 / data.num_classes})
        self._write(trainer)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the rows of a resumed run that validates no further epoch."""
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero and self.rows:
            data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
            alike = agreement_of_epochs(self.scores)
            sample = Sample(data.sizes["val"], "validation")
            self.report.data, drawn = (
                data.source.name,
                training.settling(self.rows, alike, sample.images),
            )
            settling = Result(tables.from_rows(self.rows), drawn, of=sample, drawn="settling")
            settling = settling.saying(
                "accuracy without the least important heads", "they are needed less"
            )
            pairs = Result(tables.from_rows(alike), of=sample).saying(
                "rank correlation", "epochs rank heads more alike"
            )
            self.report.add({"settling": settling, "settling_agreement": pairs})

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "scores": self.scores}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.scores = list(state_dict["rows"]), dict(state_dict["scores"])


def agreement_of_epochs(scores: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Spearman's rank correlation of every two epochs' scores, 0 where one epoch's are all the same."""
    rows = []
    for a, b in itertools.combinations(sorted(scores), 2):
        alike = spearman(torch.tensor(scores[a]), torch.tensor(scores[b]))
        rows.append({"epoch_a": a, "epoch_b": b, "spearman": 0.0 if math.isnan(alike) else alike})
    return rows
