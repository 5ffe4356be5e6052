"""Claims of the literature about heads, one a file, and the verdict that a network gives each. Found by listing."""
