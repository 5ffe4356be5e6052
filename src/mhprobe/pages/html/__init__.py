"""report.html: a run's folder as one page that needs nothing else.

``write_report`` makes it, at any time.
"""

from mhprobe.pages.html.compare import finish_sweep, write_comparison
from mhprobe.pages.html.page import finish_report, write_report

__all__ = ["finish_report", "finish_sweep", "write_comparison", "write_report"]
