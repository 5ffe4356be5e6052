"""Loggers: what a run passes on to W&B, TensorBoard, MLflow and to a file of numbers."""
