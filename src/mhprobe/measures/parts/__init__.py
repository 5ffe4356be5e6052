"""Sums, statistics and base classes that several measures share."""
