"""The LightningModule, and callbacks that watch and steer its training from outside."""
