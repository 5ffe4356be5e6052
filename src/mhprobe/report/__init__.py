"""Tables, figures, pages and W&B runs of named results.

Results are CPU tensors, summed over ranks, on rank 0.
"""
