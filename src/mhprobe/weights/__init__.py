"""Files of weights: trained and pruned networks, saved, loaded and shared."""
