"""Taking heads out for good: what is left is an ordinary, smaller timm model."""
