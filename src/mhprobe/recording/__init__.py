"""Records of what every head does on a batch, and of the logits under masks."""
