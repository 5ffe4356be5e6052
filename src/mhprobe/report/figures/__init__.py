"""Figures: one file per kind, each with a function ``draw``; a measure names the kinds it wants by their file."""
