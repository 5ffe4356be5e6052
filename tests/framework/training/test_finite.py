"""A number that is none stops the training before the weights see it, and is traced to a layer."""

from __future__ import annotations

import lightning as L
import pytest
import torch
from torch import nn

from mhprobe.data.batch import Batch
from mhprobe.errors import UserError
from mhprobe.framework.training.ends import StopAtNonFinite, first_non_finite


class Net(L.LightningModule):
    """Two layers; ``damage`` is done to the loss or to a gradient at step 3."""

    def __init__(self, damage: str | None = None) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1)
        self.damage = damage
        if damage == "gradient":
            self.one.weight.register_hook(lambda grad: grad / 0 if self.global_step == 3 else grad)

    def forward(self, images):
        middle = self.one(images)
        return self.two(middle.log() if self.damage == "loss" and self.global_step >= 3 else middle)

    def training_step(self, batch, _):
        return self(batch.images).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(net: Net, accumulate: int = 1) -> None:
    torch.manual_seed(0)
    none = torch.zeros(2, dtype=torch.long)
    batches = [Batch(torch.randn(2, 4), none, none, none.bool()) for _ in range(6 * accumulate)]
    L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StopAtNonFinite()],
        barebones=False,
        accumulate_grad_batches=accumulate,
    ).fit(net, torch.utils.data.DataLoader(batches, batch_size=None))


def test_a_whole_training_is_left_alone():
    net = Net()
    fit(net)
    assert net.global_step == 6


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("damage", "what", "where"),
    [
        ("gradient", "a gradient is not finite", "one.weight"),
        ("loss", "the loss became nan", "two"),
    ],
)
def test_it_stops_before_the_step_and_names_step_and_layer(damage, what, where, accumulate):
    net = Net(damage)
    with pytest.raises(UserError, match=f"{what} at .* step 3, first in {where};") as error:
        fit(net, accumulate)
    assert "\n" not in str(error.value) and net.global_step == 3
    assert all(weight.isfinite().all() for weight in net.parameters())


def test_a_weight_that_is_none_is_named_before_what_it_gives():
    net = Net()
    with torch.no_grad():
        net.two.bias[0] = torch.inf
    assert first_non_finite(net, torch.ones(1, 4)) == "two.bias"
    assert all(not module._forward_hooks for module in net.modules())


def test_a_finite_network_is_not_blamed():
    assert first_non_finite(Net(), torch.ones(1, 4)) == "the loss itself"
