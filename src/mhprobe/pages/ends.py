"""Pages at the end of a run and of a sweep; the framework calls this module and no other of the pages."""

from pathlib import Path
from typing import TYPE_CHECKING

from mhprobe.backbones import readings_of
from mhprobe.data.base import ImageData
from mhprobe.pages.beside import keep_attention, keep_live
from mhprobe.pages.html import finish_report, finish_sweep

if TYPE_CHECKING:
    from mhprobe.framework.training.classifier import GatedClassifier

__all__ = ["finish_run", "finish_sweep"]


def finish_run(
    folder: Path,
    command: str,
    model: "GatedClassifier",
    data: ImageData,
    *,
    attention: bool,
    live: bool,
) -> None:
    """Write ``report.html`` of a run. attention: with every head's maps. live: ``live.html`` beside it."""
    if attention:
        keep_attention(folder, model.backbone, data)
    if live:
        reason = keep_live(folder, model.backbone, data)
        if reason:
            print(f"live.html is left out: {reason}")
    inputs = {**readings_of(model.backbone), **data.readings}
    layout = model.gates.layout.of("head")
    finish_report(folder, command, layout, model.description, inputs.values())
