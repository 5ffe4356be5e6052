"""The one door from the framework to the pages, which may be absent: a run without them has files and no page."""

import importlib
import logging
from types import ModuleType

log = logging.getLogger(__name__)
ENDS = "mhprobe.pages.ends"


def pages() -> ModuleType | None:
    """Return the module that writes pages at the end of a run and of a sweep; None, with a line, without it."""
    try:
        return importlib.import_module(ENDS)
    except ModuleNotFoundError as error:
        if not ENDS.startswith(str(error.name)):
            raise
        log.warning("report.html is left out: mhprobe.pages is not installed.")
        return None
