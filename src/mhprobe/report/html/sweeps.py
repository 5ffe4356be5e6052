"""The folder of a sweep: which of its runs are finished, and all of them in one page."""

from __future__ import annotations

import logging
from pathlib import Path

from mhprobe.report.html.compare import write_comparison

log = logging.getLogger(__name__)


def jobs(folder: Path) -> list[Path]:
    """The finished runs in the folder of a sweep or a study, in their order; of anything else the folder itself."""
    results = any((folder / name).exists() for name in ("metrics.json", "tables", "figures"))
    if results and not (folder / "multirun.yaml").exists():  # a sweeper may leave a table beside its jobs
        return [folder]
    return _finished(folder) or [folder]


def finish_sweep(folder: Path) -> Path | None:
    """What a sweep does at its end: ``folder/report.html``, its jobs side by side. Never fails the sweep.

    None where fewer than two jobs have results, or after a line in the log.
    """
    runs = _finished(folder)
    if len(runs) < 2:
        return None
    try:
        return write_comparison(runs, folder / "report.html")
    except Exception as error:  # the jobs' results are there
        log.warning("report.html: %s. Try again with: python -m mhprobe.report %s", error, folder)
        return None


def _finished(folder: Path) -> list[Path]:
    inside = [path.parent for path in folder.glob("*/metrics.json")]
    return sorted(inside, key=lambda run: (len(run.name), run.name))
