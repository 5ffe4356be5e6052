"""Claims of the literature about heads, a module per subject, and the verdict on each for one network."""
