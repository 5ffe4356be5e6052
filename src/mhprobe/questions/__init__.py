"""Questions that are asked of a model and its images, and one driver that answers them."""
