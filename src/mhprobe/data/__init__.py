"""Images: sources, the decoded cache, loaders that resume exactly, and augmentation on the device."""
