"""Which heads go together, which go next, and what is left of the accuracy."""

from __future__ import annotations

from mhprobe.masking.base import Curve, Evaluate, Order, Path, Scores, Units, trace
from mhprobe.masking.units import make_units

__all__ = ["Curve", "Evaluate", "Order", "Path", "Scores", "Units", "make_units", "trace"]
