"""The model card: what the network is, what was measured of it, and how to load it, with mhprobe and without."""

from pathlib import Path
from typing import Any

import jinja2

from mhprobe import __version__
from mhprobe.errors import UserError
from mhprobe.report.runs import words
from mhprobe.report.runs.run import Run, read_run

HERE = Path(__file__).parent


def card(description: dict[str, Any], folder: Path | None) -> str:
    """Markdown. folder: of the run that made the weights; what it does not hold is left out."""
    run = _run(folder)
    kept = description.get("kept")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = _plain
    return environment.get_template("card.md.jinja").render(
        version=__version__,
        name=description["backbone"]["name"],
        classes=description["class_names"],
        data=description["data"],
        seen=description.get("input"),
        kept=kept,
        gates=description.get("gates"),
        made=description.get("made", {}),
        emptied_swin="swin" in description["backbone"]["name"] and not all((kept or {}).values()),
        accuracy=_accuracy(run),
        stages=run.rows("stages") if run else [],
        speeds=_speeds(run),
        command=run.facts.get("command") if run else None,
    )


def _run(folder: Path | None) -> Run | None:
    try:
        return None if folder is None else read_run(folder)
    except UserError:
        return None  # weights that lie alone


def _accuracy(run: Run | None) -> str | None:
    if run is None or (known := words.accuracy(run)) is None:
        return None
    share, low, high, images = known
    return f"{words.percent(share)} (95 % interval {100 * low:.1f} to {100 * high:.1f}, {images} test images)"


def _speeds(run: Run | None) -> list[dict[str, Any]]:
    """Of the heads that were removed, which stand first in the table."""
    rows = run.rows("speed") if run else []
    return [row for row in rows if row["removed"] == rows[0]["removed"]]


def _plain(text: Any) -> str:
    """Names come from data: no markup, one line."""
    return "".join(letter if letter.isalnum() or letter in " .,:+%()_/=-" else " " for letter in str(text))
