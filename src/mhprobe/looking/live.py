"""Heads that switch live, from a notebook: a page with a network and images of one's own in it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, input_spec
from mhprobe.errors import UserError
from mhprobe.looking.page import Look
from mhprobe.questions.live import keep
from mhprobe.report.html.page import LIVE, write_report
from mhprobe.report.runs.facts import write_facts


def live(model: nn.Module, images: Tensor, labels: Tensor, class_names: Sequence[str] | None = None) -> Look:
    """A page in which the heads of a network are switched, with its accuracy on images.

    model: a classifier of a supported family, of at most 25 MB as int8; gates are attached if it has none, and those
        that are closed stay closed.
    images: (N, 3, height, width) uint8, at most 500 are for a page. labels: (N,) int64.
    class_names: of the logits; by default their numbers.

    Raises UserError for images that are no uint8, for a network without logits, and one that ONNX cannot hold.
    """
    layout, backbone = attach(model).layout.of("head"), backbone_of(model)
    if not isinstance(images, Tensor) or images.dim() != 4 or "uint8" not in str(images.dtype):
        got = f"{tuple(images.shape)} {images.dtype}" if isinstance(images, Tensor) else type(images).__name__
        raise UserError(f"live: images: expected (N, 3, height, width) uint8, pixels from 0 to 255, got {got}.")
    if len(labels) != len(images):
        raise UserError(f"live: labels: expected one for each of {len(images)} images, got {len(labels)}.")
    with tempfile.TemporaryDirectory(prefix="mhprobe_live_") as place:
        folder = Path(place) / type(backbone).__name__ / "live"  # these two are the page's title
        titles = [f"image {number}" for number in range(len(images))]
        folder.mkdir(parents=True)
        keep(folder, model, images, labels, class_names or (), titles, input_spec(backbone), beside=False)
        (folder / "metrics.json").write_text("{}")
        write_facts(folder, "live", layout, None)
        write_report(folder)
        return Look((folder / LIVE).read_text(encoding="utf-8"))
