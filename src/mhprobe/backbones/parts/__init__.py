"""Base classes and code that several families share."""
