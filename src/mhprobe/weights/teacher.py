"""A trained network that another one learns from: its probabilities are the targets.

Hinton, Vinyals & Dean, 2015, arXiv 1503.02531; on the student's very images, as Beyer et al., 2022,
arXiv 2106.05237.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from mhprobe import __version__, ranks
from mhprobe.backbones import input_spec
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.data.batch import Batch
from mhprobe.data.source import other_classes
from mhprobe.errors import UserError
from mhprobe.io import files
from mhprobe.io.code import code_digests, file_digest
from mhprobe.io.ordinary import ordinary
from mhprobe.io.progress import progress
from mhprobe.io.tensors import packed, unpacked
from mhprobe.weights.checkpoint import load_weights

LEAST = 2**26  # bytes of answers that are read in any case: they may be to many other images
EVERY = 60  # seconds between two files of what a teacher has answered so far


class Teacher:
    """The network of a weights file, in eval mode and frozen.

    No module: whoever learns from it does not contain it.

    path: .safetensors with its .json, or a checkpoint. class_names: those of the student. spec: how
    the images are normalised that it will be shown. Raises UserError where the file cannot be
    loaded or knows other classes.
    """

    def __init__(self, path: str | Path, class_names: Sequence[str], spec: InputSpec) -> None:
        self.model, description = load_weights(path)
        self.model.requires_grad_(False)
        if differ := other_classes(description["class_names"], class_names):
            raise UserError(
                f"teacher: {path} has {differ} Give a network that was trained on the same classes."
            )
        self.theirs, self.ours = InputSpec(**input_spec(self.model)), spec

    @torch.no_grad()
    def __call__(self, batch: Batch, temperature: float) -> Tensor:
        """Images normalised for the student -> (B, C) probabilities, by the teacher's logits / ``temperature``."""
        self.model.to(batch.images.device)
        return (
            self.model(renormalised(batch.images, self.ours, self.theirs)).float() / temperature
        ).softmax(dim=1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it is frozen: a copy of the student learns from the same one


class Recalled(Teacher):
    """The teacher's answers to every whole training image, kept on disk: it never runs during an epoch.

    An answer is the mean of the logits of an image and of its mirror image. Probabilities of two
    images that are blended (mixup, cutmix) are blended alike. path, class_names, spec: as for
    Teacher. folder: where the answers are kept. A copy beside the weights, with the suffix
    ``.answers``, is used instead of asking, for images that are all among those that it was made
    from.
    """

    def __init__(
        self, path: str | Path, class_names: Sequence[str], spec: InputSpec, folder: str | Path
    ) -> None:
        super().__init__(path, class_names, spec)
        self.file, self.folder = file_digest(path)[:16], Path(folder)
        self.shipped = Path(path).with_suffix(".answers")
        self.logits = torch.zeros(0, len(class_names))

    def prepare(self, data: ImageData, device: torch.device) -> None:
        """Ask for all training images of ``data`` that were not answered before; a collective.

        Each process keeps its share every minute. UserError where the teacher has no finite answer.
        """
        if (shipped := self._shipped(data)) is not None:
            self.logits = shipped.to(device)
            return
        data = copy.copy(data)
        data.spec = self.theirs
        precision = (
            str(torch.get_autocast_dtype(device.type))
            if torch.is_autocast_enabled(device.type)
            else "float32"
        )
        code = [__version__, code_digests(*self.model.modules())]
        about = {"teacher": self.file, "images": data.images_of("train"), "precision": precision}
        about["code"] = hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]
        path = self.folder / f"teacher-{'-'.join(about.values())}-{ranks.rank()}.safetensors"
        before, about_before = unpacked(path) or ({}, {})
        unasked = torch.full((data.sizes["train"], self.logits.shape[1]), torch.nan)
        kept = before.get("logits", unasked) if about_before == about else unasked
        same = kept.shape == unasked.shape and kept.dtype == unasked.dtype
        answers = kept if same and not bool(kept.isinf().any()) else unasked
        missing = (ranks.total((~answers.isnan().any(1)).long()) == 0).nonzero().flatten()

        def keep() -> None:
            files.write(path, packed({"logits": answers, "digests": _digests(data)}, about))

        if len(missing):
            batches = data.batches("train", device, missing)
            ranks.together(lambda: self._ask(batches, answers, keep, len(missing)))
            keep()
        count = ranks.total((~answers.isnan().any(1)).float())
        self.logits = (ranks.total(answers.nan_to_num()) / count[:, None]).to(device)

    def _shipped(self, data: ImageData) -> Tensor | None:
        """(N, C) answers to the training images from the file beside the weights; None without one that has them all.

        Images are found by the digests of their pixels, so that no other is decoded. UserError for
        a pipe, a device, more bytes than such answers have, and answers of another shape or type or
        that are not finite.
        """
        shipped = self._shipped_answers(data) if self.shipped.exists() else None
        if shipped is None:
            return None
        logits, digests = shipped
        asked_N = _digests(data)
        in_order = digests.argsort()
        place_N = torch.searchsorted(digests[in_order], asked_N).clamp(max=max(0, len(digests) - 1))
        if not len(digests) or not torch.equal(digests[in_order][place_N], asked_N):
            return None
        return logits[in_order[place_N]].float()

    def _shipped_answers(self, data: ImageData) -> tuple[Tensor, Tensor] | None:
        """(n, C) answers of the file, and the digests (n,) of their images; None for those of another teacher."""
        classes, named = self.logits.shape[1], "teacher: its answers"
        images = max(data.limited(train=None).sizes["train"], data.sizes["train"])
        most = LEAST + 8 * (classes + 1) * images
        tensors, of = unpacked(ordinary(self.shipped, most, named)) or ({}, {})
        digests = tensors.get("digests")
        if of.get("teacher") != self.file or digests is None:
            return None
        logits, expected = tensors.get("logits"), (digests.numel(), classes)
        if logits is not None and _answers_fit(logits, digests, expected):
            return logits, digests
        raise UserError(
            f"{named}: {self.shipped}: expected finite logits {expected} of floating point, one row "
            f"per digest of an image, got {_told(logits)}. Delete the file; the teacher is asked again."
        )

    @torch.no_grad()
    def _ask(
        self, batches: Iterable[Batch], answers: Tensor, keep: Callable[[], object], total: int
    ) -> None:
        """Fill in the ``answers`` (N, C) to the images of ``batches``."""
        saved = time.monotonic()
        with progress("answers of the teacher", total) as advance:
            for batch in batches:
                self.model.to(batch.images.device)
                both = [
                    self.model(images).float() for images in (batch.images, batch.images.flip(-1))
                ]
                logits = torch.stack(both).mean(0)[batch.valid].cpu()
                if not bool(logits.isfinite().all()):
                    raise UserError(
                        "teacher: its logits of training images are NaN or infinite. Give another."
                    )
                answers[batch.index[batch.valid].cpu()] = logits
                if time.monotonic() - saved > EVERY:
                    keep()
                    saved = time.monotonic()
                advance(len(logits) * ranks.size())
        self.model.cpu()

    def __call__(self, batch: Batch, temperature: float) -> Tensor:
        """Images -> (B, C) probabilities that the teacher gave them when they were whole."""
        p = (self.logits[batch.index] / temperature).softmax(dim=1)
        if batch.share is None:
            return p
        return torch.lerp(
            (self.logits[batch.other] / temperature).softmax(dim=1), p, batch.share[:, None]
        )


def _digests(data: ImageData) -> Tensor:
    """(N,) int64, one for the pixels of each training image."""
    return torch.from_numpy(data.splits["train"].digests.astype("<u8").view("<i8"))


def renormalised(images: Tensor, was: InputSpec, now: InputSpec) -> Tensor:
    """(B, 3, h, w) of one mean, deviation and size -> (B, 3, *now.size) of another."""
    if was == now:
        return images
    numbers = was.std, was.mean, now.std, now.mean
    std, mean, new_std, new_mean = (images.new_tensor(values).view(-1, 1, 1) for values in numbers)
    pixels = images * std + mean
    if tuple(pixels.shape[-2:]) != tuple(now.size):
        pixels = functional.interpolate(
            pixels, size=now.size, mode="bicubic", antialias=True
        ).clamp_(0, 1)
    return (pixels - new_mean) / new_std


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """() how far the student's probabilities are from the teacher's: temperature^2 KL(teacher || student), in nats.

    student: (B, C) logits, which are divided by ``temperature`` first; teacher: (B, C)
    probabilities. 0 where they agree; larger is further.
    """
    log_q = (student / temperature).log_softmax(dim=1)
    return temperature**2 * functional.kl_div(log_q, teacher, reduction="batchmean")


def _answers_fit(logits: Tensor, digests: Tensor, expected: tuple[int, int]) -> bool:
    """True for finite answers of the expected shape, and one digest for each."""
    of_images = digests.dtype == torch.int64 and digests.dim() == 1
    numbers = logits.is_floating_point() and logits.shape == expected
    return of_images and numbers and bool(logits.isfinite().all())


def _told(logits: Tensor | None) -> str:
    """The answers of a file in words, for an error."""
    if logits is None:
        return "none"
    broken = logits.is_floating_point() and not bool(logits.isfinite().all())
    form = f"{tuple(logits.shape)} of {str(logits.dtype).removeprefix('torch.')}"
    return f"{form}, NaN or infinite" if broken else form
