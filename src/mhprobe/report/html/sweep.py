"""A sweep's own page: all of its finished runs side by side."""

import logging
from pathlib import Path

from mhprobe.report.html.compare import write_comparison
from mhprobe.report.runs.jobs import jobs

log = logging.getLogger(__name__)


def finish_sweep(folder: Path) -> Path | None:
    """Write ``folder/report.html`` at the end of a sweep, its jobs side by side. Never fails the sweep.

    None where fewer than two jobs have results, or after a line in the log.
    """
    runs = jobs(folder)
    if len(runs) < 2:
        return None
    try:
        return write_comparison(runs, folder / "report.html")
    except Exception as error:  # the jobs' results are there
        log.warning("report.html: %s. Try again with: python -m mhprobe.report %s", error, folder)
        return None
