"""``python -m mhprobe.voita`` has moved to mhprobe.studies."""

from mhprobe.run.cli import fail

fail("mhprobe.voita is a study now: python -m mhprobe.studies.voita, with the same options.")
