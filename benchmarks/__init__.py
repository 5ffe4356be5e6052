"""Ratios, both sides in one run, interleaved: `make bench`.

Nothing here is a test; absolute times belong to GPUs.
"""
