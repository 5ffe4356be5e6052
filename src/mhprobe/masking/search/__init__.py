"""How one step of a greedy search finds its unit: by trying everything, or by less that is as good."""

from mhprobe.masking.search.base import Choice, Search, Step

__all__ = ["Choice", "Search", "Step"]
