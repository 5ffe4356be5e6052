"""Removal of heads and neurons for good: an ordinary, smaller timm model is left."""
