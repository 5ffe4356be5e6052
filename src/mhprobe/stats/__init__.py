"""Statistics: intervals, tests, rank correlations and guarantees, as functions of numbers and tensors."""
