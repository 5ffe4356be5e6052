"""The page and the files of a shrunk network."""

import io
import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from mhprobe.errors import UserError
from mhprobe.io.files import write_all
from mhprobe.io.written import rounded
from mhprobe.pages.html.page import render
from mhprobe.pages.html.pictures import Picture, embedded_pictures
from mhprobe.pages.shrinking import sentences
from mhprobe.pages.shrinking.recipe import Shrunk, metrics
from mhprobe.pruning.rounds import Stage
from mhprobe.report.figures import pruned as figures
from mhprobe.report.figures import style

PAGE, NUMBERS = "shrink.html", "metrics.json"


def refuse_folder(folder: Path) -> None:
    """Raise UserError for a folder that holds something, or that cannot be made."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out: {folder} is a file. Give a folder that is not there yet.")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"--out: {folder} holds files, which would be mixed up. Give a folder that is not "
            "there yet."
        )


def write_folder(shrunk: Shrunk, folder: Path) -> list[Path]:
    """Write weights, page and numbers of ``shrunk`` into ``folder``: all of them or none.

    Raises UserError where there is no room.
    """
    numbers = json.dumps(metrics(shrunk), indent=2) + "\n"
    files = {folder / name: content for name, content in shrunk.files.items()}
    files[folder / NUMBERS] = numbers.encode()
    files[folder / PAGE] = shrunk_page(shrunk, folder).encode()
    return write_all(files)


def shrunk_page(shrunk: Shrunk, folder: Path) -> str:
    """Render the page. folder: where the files will lie, for the commands."""
    return render(
        "shrink.html.jinja",
        {},
        ["common.js"],
        title=f"{shrunk.network.name} at {sentences.share_words(shrunk)}",
        told=sentences.told(shrunk),
        cost=sentences.what_it_took(shrunk),
        rows=_rows(shrunk),
        speeds=[_speed(row) for row in shrunk.speeds],
        right=shrunk.pruned.scored.right,
        picture=_picture(shrunk),
        files=[*shrunk.files, NUMBERS],
        tuning=sentences.tuning(shrunk, folder.resolve()),
        weights=str((folder / "pruned.safetensors").resolve()),
        onnx=shrunk.onnx,
    )


def _rows(shrunk: Shrunk) -> list[dict[str, Any]]:
    named = {"whole": shrunk.before, "shrunk": shrunk.after, "random": shrunk.control}
    return [_row(name, row, row is shrunk.before) for name, row in named.items()]


def _row(name: str, row: Stage, whole: bool) -> dict[str, Any]:
    return {
        "name": name,
        "accuracy": f"{100 * row.accuracy:.2f} ({100 * row.low:.2f} to {100 * row.high:.2f})",
        "change": ""
        if whole
        else f"{100 * row.difference:+.2f} ({100 * row.difference_low:+.2f} to "
        f"{100 * row.difference_high:+.2f})",
        "flops": f"{row.flops:,}",
        "parameters": f"{row.parameters:,}",
        "megabytes": rounded(4 * row.parameters / 1e6, 3),
        "heads": row.heads,
        "neurons": None if row.neurons is None else f"{row.neurons:,}",
    }


def _speed(row: dict[str, Any]) -> dict[str, str]:
    return {
        "batch": str(row["batch"]),
        "whole": f"{row['dense_images_per_s']:.3g}",
        "shrunk": f"{row['pruned_images_per_s']:.3g}",
        "speedup": f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})",
        "memory": f"{row['dense_peak_memory'] / 1e6:.3g} -> {row['peak_memory'] / 1e6:.3g}",
    }


def _picture(shrunk: Shrunk) -> Picture | None:
    """Draw which heads are left; None for a network without gates on heads."""
    if not shrunk.layout.of("head").sites:
        return None
    figure, png = figures.kept(shrunk.layout, ~shrunk.pruned.gone), io.BytesIO()
    with rc_context(style.STYLE):
        figure.savefig(png, format="png", dpi=style.SCREEN)
    return embedded_pictures([("kept.png", png.getvalue())]).get("kept.png")
