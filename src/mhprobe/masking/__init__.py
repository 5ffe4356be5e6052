"""Masking curves: sets of heads, orders in which they go, and the accuracy that is left."""
