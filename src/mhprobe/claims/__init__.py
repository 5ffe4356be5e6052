"""Claims of the literature about heads, a module per subject, and the verdict that a network gives each."""
