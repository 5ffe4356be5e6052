"""Comparison of two networks of one architecture, unit by unit, and of each difference with nothing."""
