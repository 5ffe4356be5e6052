"""Run a command: check its configuration, build the parts that it names, and continue what was stopped."""
