"""Tables, figures, pages and W&B runs of named results. It gets CPU tensors, already reduced, on rank 0."""
