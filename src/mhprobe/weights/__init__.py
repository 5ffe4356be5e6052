"""Weights in files: trained ones and pruned ones."""
