"""Asking: the one callback that works at the end of a test. It asks the questions of the run."""

import lightning as L

from mhprobe.questions.ask import Answers


class Asking(L.Callback):
    """Answers the questions while the model is on its device: Lightning takes it to the CPU behind the test."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.answers.find()
