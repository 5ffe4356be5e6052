"""Training images per second: batched on uint8 tensors against torchvision's per-image PIL pipeline, 2 workers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.timing import Ratio, compare
from mhprobe.data.augment import Augment
from mhprobe.data.base import ImageData, InputSpec

IMAGES = 10_000


class Noise:
    """A source of random 32 x 32 images, twice: for training and, a few, for test."""

    root = None
    name = "noise"
    class_names = tuple("abcdefghij")


class PerImage(Dataset):
    """What torchvision.datasets.CIFAR10 does: one PIL image at a time."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, 4, padding_mode="reflect"),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])
