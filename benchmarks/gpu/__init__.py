"""What is measured and trained where a GPU is at hand for half an hour: python -m benchmarks.gpu."""
