"""Questions to a model and its images (measures, masking curves, maps), and the driver that answers and stores them."""
