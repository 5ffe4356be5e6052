"""Small ViT trained on handwritten digits (data/digits.py), whose heads become grafts.

Training images also tune grafts. Test images are cut in three: to verify grafts, to choose on, and
to measure.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn

from mhprobe.backbones import attach
from mhprobe.backbones.parts.opened import Opened
from mhprobe.data.batch import Batch
from mhprobe.data.digits import Digits
from mhprobe.measures.parts.losses import outcomes
from mhprobe.recording.outputs import objective

SIZES: dict[str, Any] = dict(
    img_size=8, patch_size=2, embed_dim=48, depth=4, num_heads=6, mlp_ratio=2.0
)
EPOCHS, AT_ONCE, RATE, DECAY = 12, 64, 3e-3, 0.05


class DigitSplits(NamedTuple):
    """Splits of the digits, (B, 3, 8, 8) normalised; all but ``train`` are a third of the test images each."""

    train: Batch
    verify: Batch
    choose: Batch
    look: Batch


@functools.cache
def digits() -> DigitSplits:
    contents = Digits().scan()
    images: dict[str, list[Tensor]] = {"train": [], "test": []}
    for split, _, pixels in contents.images():
        images[split].append(torch.from_numpy(pixels).permute(2, 0, 1))
    train, test = (
        Batch.whole(
            torch.stack(images[split]).float() / 127.5 - 1, torch.from_numpy(contents.labels[split])
        )
        for split in ("train", "test")
    )
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    return DigitSplits(train, *(test.part(rows) for rows in order.chunk(3)))


class TrainedNetwork(Opened):
    """A trained network.

    seed: of its weights and the order of images. right: accuracy on all test images.
    """

    def __init__(self, seed: int, epochs: int = EPOCHS) -> None:
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **SIZES)
            _train(model, digits().train, epochs)
        super().__init__("vit", model.eval())
        with torch.no_grad():
            right = [outcomes(self.model(part.images), part.labels)[0] for part in digits()[1:]]
        self.right = float(torch.cat(right).double().mean())

    def copied(self) -> "TrainedNetwork":
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        return other

    def changed(self, site: int, head: int, **parts: Tensor) -> "TrainedNetwork":
        """Return a copy with these parts of a head written anew; see ``write``."""
        other = self.copied()
        other.write(site, head, **parts)
        return other

    def gated(self) -> nn.Module:
        """Return a copy of the model, with gates on its heads, for measures."""
        model: nn.Module = copy.deepcopy(self.model)
        attach(model)
        return model

    def loss(self, without: Sequence[tuple[int, int]] = ()) -> float:
        """Mean loss of the ``verify`` images, in nats, without some heads (site, head)."""
        seen = digits().verify
        return float(outcomes(self.logits(seen.images, without), seen.labels)[1].double().mean())

    def writes(self, site: int, head: int) -> Tensor:
        """(B, T, C) contribution of this head alone to the stream, on the ``verify`` images."""
        return self.write_of(site, head, self.around_norm(site, digits().verify.images)[0])


def _train(model: nn.Module, seen: Batch, epochs: int) -> None:
    steps = epochs * (len(seen.labels) // AT_ONCE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(seen.labels))
        for rows in order[: len(order) // AT_ONCE * AT_ONCE].split(AT_ONCE):
            loss = objective(model(seen.images[rows]), seen.labels[rows], "loss").mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
