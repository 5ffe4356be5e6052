"""``python -m mhprobe.sweep`` has moved to mhprobe.studies."""

from mhprobe.run.cli import fail

fail("mhprobe.sweep is a study now: python -m mhprobe.studies.sweep, with the same options.")
