"""Scores of a model on a split."""
