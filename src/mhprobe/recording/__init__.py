"""Looking inside a model: what every head did on a batch, and what the logits are under masks."""
