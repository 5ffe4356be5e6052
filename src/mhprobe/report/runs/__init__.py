"""Finished runs, read back from their folders: tables, metrics, settings, and what they say in words."""
