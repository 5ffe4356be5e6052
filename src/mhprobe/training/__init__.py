"""The LightningModule, and the callbacks that watch and steer its training without its knowing."""
