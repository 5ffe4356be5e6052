"""From a composed configuration to a run."""
