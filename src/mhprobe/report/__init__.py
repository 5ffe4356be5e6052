"""Named results become tables, figures and a W&B run. Gets CPU tensors, already reduced, on rank 0."""
