"""What makes a figure of a paper from what was measured: a file per way, with functions of a ``Material``."""
