"""Scores of a model on a split: what counts as right, and as loss, for each image (the group score)."""
