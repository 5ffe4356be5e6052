"""Searches of one greedy step: trying every unit, or fewer that are as good."""

from mhprobe.masking.search.base import Choice, Search, Step

__all__ = ["Choice", "Search", "Step"]
