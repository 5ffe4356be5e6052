"""Training images per second: batched on uint8 tensors against torchvision's per-image PIL pipeline with 2 workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, compare
from mhprobe.data.augment import Augment
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.source import Contents


class Noise:
    """Random 32 x 32 images in ten classes."""

    name = "noise"

    def __init__(self, images: int) -> None:
        random = np.random.default_rng(0)
        self.pixels = random.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
        self.labels = np.arange(images) % 10

    def key(self) -> dict[str, int]:
        return {"images": len(self.labels)}

    def scan(self) -> Contents:
        def images() -> Iterator[tuple[str, int, np.ndarray]]:
            for number, image in enumerate(self.pixels):
                yield "train", number, image
            for number, image in enumerate(self.pixels[:100]):
                yield "test", number, image

        labels = {"train": self.labels, "test": self.labels[:100]}
        return Contents(tuple("abcdefghij"), labels, (32, 32), images)


class PerImage(Dataset):
    """What torchvision.datasets.CIFAR10 with the usual transforms does: one PIL image at a time."""

    def __init__(self, source: Noise, count: int) -> None:
        self.pixels, self.labels, self.count = source.pixels, source.labels, count
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, 4, padding_mode="reflect"),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), int(self.labels[index])


def run(size: Size) -> Iterator[Ratio]:
    source = Noise(size.pick(1_500, 20_000))
    with tempfile.TemporaryDirectory() as folder:
        data = ImageData(
            source,
            128,
            augment=Augment(crop_padding=4, flip=True),
            cache_dir=folder,
            val_fraction=0.1,
        )
        data.prepare_data()
        data.setup()
        data.spec = InputSpec((32, 32))
        ours = data.train_dataloader()
        theirs = DataLoader(
            PerImage(source, len(ours) * 128),
            batch_size=128,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
        )

        def batched() -> None:
            for batch in ours:
                data.transform(batch, train=True, epoch=0)

        def per_image() -> None:
            for _ in theirs:
                pass

        what = "images per second, crop + flip + normalise at 32 px: mhprobe / torchvision, PIL, 2 workers"
        yield compare(what, per_image, batched, rounds=size.rounds(5), limit=">= 10")
