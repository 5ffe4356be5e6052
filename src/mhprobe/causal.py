"""``python -m mhprobe.causal`` has moved to mhprobe.studies."""

from mhprobe.run.cli import fail

fail("mhprobe.causal is a study now: python -m mhprobe.studies.causal, with the same options.")
