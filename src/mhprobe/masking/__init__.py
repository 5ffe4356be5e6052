"""Masking curves: sets of heads, orders in which they are switched off, and the accuracy that is left."""
