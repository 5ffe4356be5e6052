"""Files: written whole or not at all; tables of heads; progress bars; signals that end a process."""
