"""Which heads go together, which go next, and what is left of the accuracy."""

from __future__ import annotations
