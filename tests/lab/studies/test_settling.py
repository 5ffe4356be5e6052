"""The settling callback: what it removes, what it says, and that a resumed run still has it."""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L
import pytest
import torch
from scipy.stats import spearmanr

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.lab.papers.settling import Settling, agreement_of_epochs
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.recording.replay import Replay
from mhprobe.report.figures import style
from mhprobe.report.report import Report
from models import images_for, labels_for, tiny_vit


def test_agreement_is_spearmans():
    generator = torch.Generator().manual_seed(0)
    scores = {
        epoch: torch.randint(0, 6, (12,), generator=generator).tolist() for epoch in (4, 0, 9)
    }
    rows = agreement_of_epochs(scores)
    assert [(row["epoch_a"], row["epoch_b"]) for row in rows] == [(0, 4), (0, 9), (4, 9)]
    for row in rows:
        expected = spearmanr(scores[row["epoch_a"]], scores[row["epoch_b"]]).statistic  # with ties
        assert row["spearman"] == pytest.approx(expected, rel=1e-9)
    assert agreement_of_epochs({0: [1.0, 1.0], 1: [1.0, 2.0]})[0]["spearman"] == 0


class Data(L.LightningDataModule):
    """15 validation images in batches of 6, the last one padded."""

    def __init__(self, model) -> None:
        super().__init__()
        self.images, self.labels = images_for(model, 15), labels_for(15)
        self.sizes, self.num_classes, self.source = {"val": 15}, 5, SimpleNamespace(name="pictures")

    def batches(self, split, device="cpu", images=None):
        assert split == "val"
        for start in range(0, 15, 6):
            index = torch.arange(start, start + 6)
            valid = index < 15
            index = index.clamp(max=14)
            yield Batch(self.images[index], self.labels[index], index, valid)


@pytest.fixture
def run(tmp_path):
    import mhprobe

    model = tiny_vit()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # heads of a fresh timm model are nearly silent
    layout = mhprobe.attach(model).layout
    model.device = torch.device("cpu")
    data = Data(model)
    trainer = SimpleNamespace(
        current_epoch=0, sanity_checking=False, is_global_zero=True, datamodule=data
    )
    return SimpleNamespace(
        model=model, data=data, trainer=trainer, report=Report(tmp_path, layout), folder=tmp_path
    )


def test_accuracy_is_that_of_the_model_without_its_lowest_heads(run):
    callback = Settling(
        run.report, GateImportance, shares=[0.45, 1.0]
    )  # 0.45 of 6 heads is nearest to 3
    callback.on_validation_end(run.trainer, run.model)
    import mhprobe

    score = mhprobe.measure(run.model, [(run.data.images, run.data.labels)], [GateImportance])[
        "gate_importance"
    ]
    torch.testing.assert_close(
        torch.tensor(callback.scores[0]), score, check_dtype=False, rtol=1e-5, atol=0
    )
    for row, count in zip(callback.rows, (0, 3, 6), strict=True):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[score.argsort()[:count]] = True
        right = Replay(run.model, mask[None])(run.data.images)[0].argmax(1) == run.data.labels
        assert row == {
            **row,
            "heads_masked": count,
            "accuracy": pytest.approx(right.double().mean().item()),
        }
    assert (run.folder / "tables" / "settling.csv").is_file() and (
        run.folder / "figures" / "settling.png"
    ).is_file()


def test_the_small_print_says_that_the_images_are_of_validation(run, monkeypatch):
    said = []
    monkeypatch.setattr(
        style, "save_figure", lambda figure, stem, about, *more: said.append(about) or [stem]
    )
    Settling(run.report, GateImportance, shares=[0.5]).on_validation_end(run.trainer, run.model)
    assert said == ["pictures, n = 15 validation images"]


def test_only_every_nth_epoch_and_a_resumed_run_goes_on(run):
    callback = Settling(run.report, GateImportance, every_n_epochs=2, shares=[0.5])
    for epoch in range(4):
        run.trainer.current_epoch = epoch
        callback.on_validation_end(run.trainer, run.model)
    assert [row["epoch"] for row in callback.rows] == [1, 1, 3, 3]
    resumed = Settling(run.report, GateImportance, every_n_epochs=2, shares=[0.5])
    resumed.load_state_dict(callback.state_dict())
    resumed.on_validation_end(run.trainer, run.model)  # epoch 3 is there already
    run.trainer.current_epoch = 5
    resumed.on_validation_end(run.trainer, run.model)
    assert [row["epoch"] for row in resumed.rows] == [1, 1, 3, 3, 5, 5]
    assert resumed.rows[:4] == callback.rows[:4]


class Net(L.LightningModule):
    """Trains in no time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, _):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(callback: Settling, data: Data, ckpt_path=None) -> L.Trainer:
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.datamodule = data
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(1)), ckpt_path=ckpt_path)
    return trainer


def test_a_finished_run_that_goes_on_elsewhere_writes_what_it_brought(run):
    """Lightning trains nothing then, so no epoch is validated."""
    callback = Settling(run.report, GateImportance, shares=[0.5])
    callback.on_validation_end(run.trainer, run.model)
    fit(callback, run.data).save_checkpoint(run.folder / "finished.ckpt")

    elsewhere = run.folder / "elsewhere"
    again = Settling(Report(elsewhere, run.report.layout), GateImportance, shares=[0.5])
    fit(again, run.data, run.folder / "finished.ckpt")
    for file in ("tables/settling.csv", "tables/settling_agreement.csv", "figures/settling.png"):
        assert (elsewhere / file).read_bytes() == (run.folder / file).read_bytes(), file


@pytest.mark.parametrize("shares", [[], [0.0], [1.1]])
def test_impossible_shares_are_refused(run, shares):
    with pytest.raises(UserError, match="above 0 and up to 1"):
        Settling(run.report, GateImportance, shares=shares)
