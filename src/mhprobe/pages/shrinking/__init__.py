"""One command from trained weights to a smaller network: its images, the recipe, sentences and a page."""
